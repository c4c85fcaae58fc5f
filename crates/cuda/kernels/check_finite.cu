// The same numbers; one that is not finite is a fault.
extern "C" __global__ void __launch_bounds__(THREADS) check_finite(const x_t *x, x_t *y, u64 *fault) {
    typedef Vector<x_t, VECTOR> Elements;
    const index_t i = ((index_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= COUNT) return;
    const Elements elements = *(const Elements *)(x + i);
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        const u64 place = (u64)i + v;
        // NaN is not less than anything.
        if (!(fabsf(to_float(elements.at[v])) < __int_as_float(0x7f800000)))
            raise_fault(fault, FAULT_STEP, place < 0xffffffffu ? (u32)place : 0xffffffffu);
    }
    if (x != y) *(Elements *)(y + i) = elements;
}
