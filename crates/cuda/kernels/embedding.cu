// Rows of a table by number, VECTOR elements a thread. A number that the table does not have is a fault, and a row of zeros.
extern "C" __global__ void __launch_bounds__(THREADS) embedding(const x_t *x, const ids_t *ids, y_t *y, u64 *fault) {
    await_earlier();
    typedef Vector<y_t, VECTOR> Elements;
    const index_t i = ((index_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= COUNT) return;
    const index_t column = i % COLUMNS;
    // A number below zero is above every bound.
    const u32 id = (u32)ids[i / COLUMNS];
    Elements elements = {};
    if (id < TABLE_ROWS)
        elements = *(const Elements *)(x + id * COLUMNS + column);
    else if (column == 0)
        raise_fault(fault, FAULT_STEP, id);
    *(Elements *)(y + i) = elements;
}
