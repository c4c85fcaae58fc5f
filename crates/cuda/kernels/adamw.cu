struct Factors {
    float rate, decay, root_correction;
};

// By squaring, as on the CPU.
__device__ __forceinline__ double power(double base, u64 exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

// In f64: with beta2 near 1, the difference from 1 would lose most of its digits in f32.
__device__ __forceinline__ Factors factors_of(float learning_rate, float step) {
    const u64 t = (u64)step;
    const double bias1 = 1.0 - power((double)KEPT1, t), bias2 = 1.0 - power((double)KEPT2, t);
    return {(float)((double)learning_rate / bias1), learning_rate * WEIGHT_DECAY, (float)sqrt(1.0 / bias2)};
}

__device__ __forceinline__ void moved(const Factors &at, float gradient, float &weight, float &first, float &second) {
    first = KEPT1 * first + TAKEN1 * gradient;
    second = KEPT2 * second + TAKEN2 * (gradient * gradient);
    const float root = sqrtf(second) * at.root_correction + EPSILON;
    weight -= at.rate * first / root + at.decay * weight;
}
