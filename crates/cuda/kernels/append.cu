// Rows put into a cache [.., PLACES, DEPTH], NEW places of it, from the position on; what lies outside is left out. WIDTH
// elements at a time. In place only the new rows are written, otherwise all: the cache's, and over them the new ones.
constexpr int WRITTEN = IN_PLACE ? NEW : PLACES;

extern "C" __global__ void __launch_bounds__(THREADS) append(const i32 *position, const cache_t *cache, const x_t *x, cache_t *y) {
    const long long first = *position;
    await_earlier();
    const index_t i = ((index_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    if (i >= COUNT) return;
    const index_t column = i % DEPTH, row = i / DEPTH, of_row = row % WRITTEN, outer = row / WRITTEN;
    const long long place = (IN_PLACE ? first : 0) + (long long)of_row, number = place - first;
    if (place < 0 || place >= PLACES) return;
    Vector<cache_t, WIDTH> elements;
    if (number >= 0 && number < NEW) {
        const Vector<x_t, WIDTH> from = *(const Vector<x_t, WIDTH> *)(x + x_at((outer * NEW + (index_t)number) * DEPTH + column));
#pragma unroll
        for (int v = 0; v < WIDTH; v++) elements.at[v] = from_float<cache_t>(to_float(from.at[v]));
    } else {
        elements = *(const Vector<cache_t, WIDTH> *)(cache + i);
    }
    *(Vector<cache_t, WIDTH> *)(y + (outer * PLACES + (index_t)place) * DEPTH + column) = elements;
}
