// The products of a warpgroup, four neighboring warps, which run beside it: [64, 64] += [64, 16] [16, 64]. Operands in shared
// memory are tiles of rows of 64 numbers of 16 bits, each row 128 bytes; of row r, the piece p of 16 bytes lies where piece
// p ^ r % 8 would. Tiles begin at multiples of 1024 bytes. A thread has of the sums, 8 columns after 8 columns, what it has
// of a fragment of `multiply_add`, and four of a left operand as that wants them.

constexpr int TILE = 64 * 64, GROUP_THREADS = 4 * WARP;

// Where the number in this row and column lies in a tile.
__device__ __forceinline__ int tile_at(int row, int column) { return row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8; }

// What tells a product of a tile: its address and the distance between eight rows and the next, in 16 bytes, and how rows lie.
__device__ __forceinline__ u64 describe(const void *tile) {
    return (u64)(shared_address(tile) >> 4) | (u64)(1024 >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
// What is to be added to go on by 16 columns, or by 16 rows.
constexpr u64 COLUMNS_16 = 32 >> 4, ROWS_16 = 2048 >> 4;

#define SUMS_4(at) "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3])
#define SUMS SUMS_4(0), SUMS_4(4), SUMS_4(8), SUMS_4(12), SUMS_4(16), SUMS_4(20), SUMS_4(24), SUMS_4(28)
#define SUM_NUMBERS \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

// d = a b, or d += a b if `add`. TRANSPOSED: the rows of both tiles are what is summed over. Otherwise the columns are.
#define DEFINE_PRODUCTS(TYPE) \
    template <bool TRANSPOSED> __device__ __forceinline__ void multiply_tiles(TYPE, float (&d)[32], u64 a, u64 b, bool add) { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " " SUM_NUMBERS ", %32, %33, add, 1, 1, %35, %35;\n}" \
                     : SUMS : "l"(a), "l"(b), "r"((int)add), "n"((int)TRANSPOSED)); \
    } \
    /* The same of a left operand in registers. */ \
    template <bool TRANSPOSED> __device__ __forceinline__ void multiply_left(TYPE, float (&d)[32], const u32 (&a)[4], u64 b, bool add) { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " " SUM_NUMBERS ", {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}" \
                     : SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)TRANSPOSED)); \
    }
DEFINE_PRODUCTS(bf16)
DEFINE_PRODUCTS(f16)

// Before products: what the warpgroup wrote into their registers is there.
__device__ __forceinline__ void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups but the last LEFT ones.
template <int LEFT> __device__ __forceinline__ void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// After the wait for the products that give these sums: no use of them moves before it.
__device__ __forceinline__ void settle(float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// Lets products see what this thread wrote to shared memory, after the next barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier at which so many say that they have come, and wait for the others later.
__device__ __forceinline__ void start_barrier(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// For this thread alone.
__device__ __forceinline__ void arrive_alone(u64 *barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(barrier)) : "memory");
}
// For all of a warp, once each time.
__device__ __forceinline__ void arrive(u64 *barrier) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) arrive_alone(barrier);
}
// Waits until all have come; `parity` is 0 the first time, then 1, and so on in turn.
__device__ __forceinline__ void await(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}
