struct Factors {
    float learning_rate;
};

__device__ __forceinline__ Factors factors_of(float learning_rate, float) { return {learning_rate}; }

// A NaN stays one, so that a weight does not stand still without a word.
__device__ __forceinline__ float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x * 0.0f; }

__device__ __forceinline__ void moved(const Factors &at, float gradient, float &weight, float &moment, float &) {
    const float direction = sign(KEPT1 * moment + TAKEN1 * gradient);
    moment = KEPT2 * moment + TAKEN2 * gradient;
    weight -= at.learning_rate * (direction + WEIGHT_DECAY * weight);
}
