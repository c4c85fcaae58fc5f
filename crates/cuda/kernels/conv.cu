// Convolution of IMAGES with GROUPS times FILTERS filters over CHANNELS channels, and its gradients: each result is summed
// up by itself, in f32. Output row `oy` and filter row `ky` meet at input row `oy * STRIDE_H + ky * DILATION_H - PADDING_H`.
typedef long long i64;
constexpr i64 INPUT_PLANE = (i64)INPUT_H * INPUT_W, OUTPUT_PLANE = (i64)OUTPUT_H * OUTPUT_W;
constexpr i64 KERNEL_PLANE = (i64)KERNEL_H * KERNEL_W;

// x [n, groups * channels, h, w], weight [groups * filters, channels, kh, kw], y [n, groups * filters, oh, ow].
extern "C" __global__ void __launch_bounds__(THREADS) conv(const x_t *x, const x_t *weight, x_t *y) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const i64 top = (i64)(i / OUTPUT_W % OUTPUT_H) * STRIDE_H - PADDING_H, left = (i64)(i % OUTPUT_W) * STRIDE_W - PADDING_W;
    const i64 filter = i / OUTPUT_PLANE % (GROUPS * FILTERS), image = i / OUTPUT_PLANE / (GROUPS * FILTERS);
    const x_t *planes = x + (image * GROUPS + filter / FILTERS) * CHANNELS * INPUT_PLANE;
    const x_t *weights = weight + filter * CHANNELS * KERNEL_PLANE;
    float sum = 0;
    for (i64 channel = 0; channel < CHANNELS; channel++)
        for (i64 ky = 0; ky < KERNEL_H; ky++) {
            const i64 row = top + ky * DILATION_H;
            if (row < 0 || row >= INPUT_H) continue;
            for (i64 kx = 0; kx < KERNEL_W; kx++) {
                const i64 column = left + kx * DILATION_W;
                if (column < 0 || column >= INPUT_W) continue;
                sum += to_float(planes[channel * INPUT_PLANE + row * INPUT_W + column]) *
                       to_float(weights[channel * KERNEL_PLANE + ky * KERNEL_W + kx]);
            }
        }
    y[i] = from_float<x_t>(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) conv_input_gradient(const x_t *g, const x_t *weight, x_t *dx) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const i64 bottom = (i64)(i / INPUT_W % INPUT_H) + PADDING_H, right = (i64)(i % INPUT_W) + PADDING_W;
    const i64 plane = i / INPUT_PLANE % (GROUPS * CHANNELS), image = i / INPUT_PLANE / (GROUPS * CHANNELS);
    const i64 first = plane / CHANNELS * FILTERS, channel = plane % CHANNELS;
    float sum = 0;
    for (i64 filter = first; filter < first + FILTERS; filter++)
        for (i64 ky = 0; ky < KERNEL_H; ky++) {
            const i64 row = bottom - ky * DILATION_H;
            if (row < 0 || row % STRIDE_H != 0 || row / STRIDE_H >= OUTPUT_H) continue;
            for (i64 kx = 0; kx < KERNEL_W; kx++) {
                const i64 column = right - kx * DILATION_W;
                if (column < 0 || column % STRIDE_W != 0 || column / STRIDE_W >= OUTPUT_W) continue;
                const i64 output = row / STRIDE_H * OUTPUT_W + column / STRIDE_W;
                sum += to_float(g[(image * GROUPS * FILTERS + filter) * OUTPUT_PLANE + output]) *
                       to_float(weight[(filter * CHANNELS + channel) * KERNEL_PLANE + ky * KERNEL_W + kx]);
            }
        }
    dx[i] = from_float<x_t>(sum);
}

// A block has one weight.
extern "C" __global__ void __launch_bounds__(THREADS) conv_weight_gradient(const x_t *x, const x_t *g, x_t *dweight) {
    __shared__ float shared[32];
    const i64 i = blockIdx.x, kx = i % KERNEL_W, ky = i / KERNEL_W % KERNEL_H;
    const i64 channel = i / KERNEL_PLANE % CHANNELS, filter = i / KERNEL_PLANE / CHANNELS;
    const i64 plane = filter / FILTERS * CHANNELS + channel;
    float sum = 0;
    for (i64 place = threadIdx.x; place < IMAGES * OUTPUT_PLANE; place += THREADS) {
        const i64 image = place / OUTPUT_PLANE, output = place % OUTPUT_PLANE;
        const i64 row = output / OUTPUT_W * STRIDE_H + ky * DILATION_H - PADDING_H;
        const i64 column = output % OUTPUT_W * STRIDE_W + kx * DILATION_W - PADDING_W;
        if (row < 0 || row >= INPUT_H || column < 0 || column >= INPUT_W) continue;
        sum += to_float(x[(image * GROUPS * CHANNELS + plane) * INPUT_PLANE + row * INPUT_W + column]) *
               to_float(g[(image * GROUPS * FILTERS + filter) * OUTPUT_PLANE + output]);
    }
    sum = block_all<THREADS>(sum, Add(), shared);
    if (threadIdx.x == 0) dweight[i] = from_float<x_t>(ACCUMULATES ? to_float(dweight[i]) + sum : sum);
}
