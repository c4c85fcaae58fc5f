// Elements added along an axis, each at an index of its own. Where they go is sorted by, so that one thread adds all that goes
// to one place, in the order of the index. What is out of range goes to ELEMENTS, and is left out.
#if KEYS
extern "C" __global__ void __launch_bounds__(THREADS) scatter_keys(
    const ids_t *ids, word_t *keys, word_t *positions
#if FAULTS
    , u64 *fault
#endif
) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    // A number below zero is above every bound.
    const u32 id = (u32)ids[i];
    keys[i] = id < AXIS ? (i / (INDEX_AXIS * INNER) * AXIS + id) * INNER + i % INNER : ELEMENTS;
    positions[i] = i;
#if FAULTS
    if (id >= AXIS) raise_fault(fault, FAULT_STEP, id);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) scatter_sums(
    const y_t *updates, const word_t *keys, const word_t *positions, y_t *y) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const word_t key = keys[i];
    if (key == ELEMENTS || (i > 0 && keys[i - 1] == key)) return;
    float sum = to_float(y[key]);
    for (index_t j = i; j < COUNT && keys[j] == key; j++) sum += to_float(updates[positions[j]]);
    y[key] = from_float<y_t>(sum);
}
#endif
