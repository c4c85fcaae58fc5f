struct Factors {
    float learning_rate;
};

__device__ __forceinline__ Factors factors_of(float learning_rate, float) { return {learning_rate}; }

__device__ __forceinline__ void moved(const Factors &at, float gradient, float &weight, float &buffer, float &) {
    buffer = MOMENTUM * buffer + gradient;
    const float direction = NESTEROV ? gradient + MOMENTUM * buffer : buffer;
    weight -= at.learning_rate * (direction + WEIGHT_DECAY * weight);
}
