// Windows of KERNEL_H x KERNEL_W elements that move over planes of INPUT_H x INPUT_W by STRIDE_H x STRIDE_W; the first begins
// PADDING_H x PADDING_W outside. There are OUTPUT_H x OUTPUT_W of them.
typedef long long i64;

#if INPUT_GRADIENT
// The mean's gradient: the shares of an element in all windows that it is in.
extern "C" __global__ void __launch_bounds__(THREADS) avg_pool_gradient(const x_t *g, x_t *dx) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const i64 row = i / INPUT_W % INPUT_H + PADDING_H, column = i % INPUT_W + PADDING_W;
    const x_t *plane = g + i / (INPUT_H * INPUT_W) * (OUTPUT_H * OUTPUT_W);
    const i64 top = row < KERNEL_H ? 0 : (row - KERNEL_H) / STRIDE_H + 1;
    const i64 left = column < KERNEL_W ? 0 : (column - KERNEL_W) / STRIDE_W + 1;
    float sum = 0;
    for (i64 oy = top; oy < (i64)OUTPUT_H && oy * STRIDE_H <= row; oy++)
        for (i64 ox = left; ox < (i64)OUTPUT_W && ox * STRIDE_W <= column; ox++) sum += to_float(plane[oy * (i64)OUTPUT_W + ox]);
    dx[i] = from_float<x_t>(sum / ((float)KERNEL_H * (float)KERNEL_W));
}
#else
// The part of a window that is in the plane.
struct Span {
    i64 begin, end;
    __device__ __forceinline__ Span(i64 window, i64 stride, i64 padding, i64 kernel, i64 size) {
        begin = window * stride - padding;
        end = begin + kernel < size ? begin + kernel : size;
        if (begin < 0) begin = 0;
    }
};

#if MAXIMUM
// The largest and where it is: the first of equal ones, and NaN before any number.
extern "C" __global__ void __launch_bounds__(THREADS) max_pool(const x_t *x, x_t *values, i32 *indices) {
#else
// The mean, zeros in the padding included.
extern "C" __global__ void __launch_bounds__(THREADS) avg_pool(const x_t *x, x_t *values) {
#endif
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const Span rows(i / OUTPUT_W % OUTPUT_H, STRIDE_H, PADDING_H, KERNEL_H, INPUT_H);
    const Span columns(i % OUTPUT_W, STRIDE_W, PADDING_W, KERNEL_W, INPUT_W);
    const x_t *plane = x + i / (OUTPUT_H * OUTPUT_W) * (INPUT_H * INPUT_W);
#if MAXIMUM
    i64 first = rows.begin * (i64)INPUT_W + columns.begin;
    float largest = to_float(plane[first]);
    for (i64 row = rows.begin; row < rows.end; row++)
        for (i64 column = columns.begin; column < columns.end; column++) {
            const i64 place = row * (i64)INPUT_W + column;
            const float number = to_float(plane[place]);
            if (number > largest || (number != number && largest == largest)) {
                largest = number;
                first = place;
            }
        }
    values[i] = plane[first];
    indices[i] = (i32)first;
#else
    float sum = 0;
    for (i64 row = rows.begin; row < rows.end; row++)
        for (i64 column = columns.begin; column < columns.end; column++) sum += to_float(plane[row * (i64)INPUT_W + column]);
    values[i] = from_float<x_t>(sum / ((float)KERNEL_H * (float)KERNEL_W));
#endif
}
#endif
