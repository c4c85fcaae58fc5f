// Which keys a query sees, and which queries a key is seen by. QUERIES, KEYS, CAUSAL and WINDOW are constants; the window is
// at most KEYS.
constexpr int OFFSET = CAUSAL ? KEYS - QUERIES : 0;
constexpr int PLACES = QUERIES > KEYS ? QUERIES : KEYS;

#define INFINITE __int_as_float(0x7f800000)

struct Range { int begin, end; };
// Of scores: those that are not numbers show in the sums.
struct Most { __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); } };

// The keys before this one are those that a query sees, and those before its window.
__device__ __forceinline__ int end_key(int query) { return CAUSAL ? OFFSET + query + 1 : KEYS; }

__device__ __forceinline__ bool sees(int query, int key) {
    const int end = end_key(query);
    return query < QUERIES && key < end && key >= end - WINDOW;
}

// The keys that some of these queries see.
__device__ __forceinline__ Range keys_of(int first, int count) {
    if (first >= QUERIES) return {0, 0};
    const int last = min(first + count, QUERIES) - 1;
    return {max(end_key(first) - WINDOW, 0), end_key(last)};
}

// The queries that see some of these keys.
__device__ __forceinline__ Range queries_of(int first, int count) {
    if (first >= KEYS) return {0, 0};
    if (!CAUSAL) return {0, QUERIES};
    const int last = min(first + count, KEYS) - 1;
    return {max(first - OFFSET, 0), min(last - OFFSET + WINDOW, QUERIES)};
}

// Whether some of these queries and keys see each other. What a query sees lies one further than what the query before it
// sees, so that together it has no gaps.
__device__ __forceinline__ bool some_seen(int query, int queries, int key, int keys) {
    const int last = min(query + queries, QUERIES) - 1;
    return query < QUERIES && key < end_key(last) && key + keys > end_key(query) - WINDOW;
}

// Whether all of these queries see all of these keys.
__device__ __forceinline__ bool all_seen(int query, int queries, int key, int keys) {
    return query + queries <= QUERIES && key + keys <= end_key(query) && key >= end_key(query + queries - 1) - WINDOW;
}

// A block's tile of rows, and the head and the sequence that it is of. Tiles of a head are neighbors, so that what they
// share is in the cache; the last, which sees most if causal, is first.
struct Block { int first; index_t head, batch; };
template <int SIZE> __device__ __forceinline__ Block block_of(int rows, index_t heads) {
    const index_t tiles = (rows + SIZE - 1) / SIZE, rest = blockIdx.x / tiles;
    return {(int)(tiles - 1 - blockIdx.x % tiles) * SIZE, rest % heads, rest / heads};
}
