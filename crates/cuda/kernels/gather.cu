// Elements picked along an axis, each by an index of its own; zero, and a fault if there is a cell for it, where the index is
// out of range.
extern "C" __global__ void __launch_bounds__(THREADS) gather(
    const x_t *x, const ids_t *ids, x_t *y
#if FAULTS
    , u64 *fault
#endif
) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    // A number below zero is above every bound.
    const u32 id = (u32)ids[i];
    x_t element = {};
    if (id < AXIS) element = x[(i / (INDEX_AXIS * INNER) * AXIS + id) * INNER + i % INNER];
#if FAULTS
    else raise_fault(fault, FAULT_STEP, id);
#endif
    y[i] = element;
}
