// A product of 16-bit matrices and what follows it: GELU, which may keep the product or its own slope there, or numbers that each of
// the product's is multiplied by, and then the sums of the columns. A block has two warpgroups that multiply, 64 rows by 256 columns
// each, a warp that copies tiles of the operands ahead, and three warps that make what is stored of the sums, so that the products
// of the next tile run beside it. Between them lie the sums in shared memory, rounded as they are stored.
// Two blocks of a cluster have the same columns: each copies half of the second operand for both. Clusters go through the tiles
// by turns, columns first, so that what they read at a time is close together.
constexpr int CLUSTER = 2, TILE_ROWS = 128, TILE_COLUMNS = 256, STEP = 64, STEPS = (DEPTH + STEP - 1) / STEP, STAGES = 3;
constexpr int ACROSS = (COLUMNS + TILE_COLUMNS - 1) / TILE_COLUMNS, DOWN = (ROWS + TILE_ROWS * CLUSTER - 1) / (TILE_ROWS * CLUSTER);
constexpr int A_BYTES = TILE_ROWS * STEP * 2, B_BYTES = TILE_COLUMNS * STEP * 2, STAGE = A_BYTES + B_BYTES;
// The sums of a warpgroup: of row r, the piece p of 16 bytes lies where piece p ^ r % 8 would.
constexpr int SUM_ROW = TILE_COLUMNS * 2, SUM_TILE = 64 * SUM_ROW;
// Warps that store, and the most rows of half a tile that one of them has.
constexpr int STORERS = 3, OWN_ROWS = (64 + STORERS - 1) / STORERS;
// What follows.
constexpr int GELU = 0, GELU_KEEPING = 1, GELU_KEEPING_SLOPE = 2, TIMES = 3;

struct alignas(64) TensorMap { u64 words[16]; };
struct Barriers {
    u64 full[STAGES], empty[STAGES], summed[2], stored[2];
};
constexpr int BARRIERS = 128;
// The sums of a tile's columns by each warp that stores, of two tiles by turns.
constexpr int COLUMN_SUMS = HAS_COLUMN_SUMS ? 2 * STORERS * TILE_COLUMNS * 4 : 0;
static_assert(sizeof(Barriers) <= BARRIERS && STAGES * STAGE + 2 * SUM_TILE + 4 * TILE_COLUMNS * 4 + COLUMN_SUMS + BARRIERS == SHARED, "all that is shared has room");

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Says that so many bytes will come.
__device__ __forceinline__ void expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Begins to copy a box of a matrix, which arrives at the barrier; ALL: for all blocks of the cluster, at the same place in each.
#define COPY_BOX(DIMENSIONS, ALL, PLACE, ...) \
    asm volatile("cp.async.bulk.tensor." DIMENSIONS ".shared::cluster.global.tile.mbarrier::complete_tx::bytes" ALL " [%0], [%1, {" PLACE "}], [%2]" __VA_ARGS__)
#define COPY_TO ::"r"(shared_address(to)), "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(outer)
__device__ __forceinline__ void begin_box(void *to, const TensorMap &map, int inner, int outer, u64 *barrier) {
    COPY_BOX("2d", "", "%3, %4", ";" COPY_TO : "memory");
}
__device__ __forceinline__ void begin_box_for_all(void *to, const TensorMap &map, int inner, int outer, u64 *barrier) {
    COPY_BOX("2d", ".multicast::cluster", "%3, %4", ", %5;" COPY_TO, "h"((u16)((1 << CLUSTER) - 1)) : "memory");
}
// The same of blocks of 64 columns, two of them, one after another.
__device__ __forceinline__ void begin_blocks_for_all(void *to, const TensorMap &map, int inner, int outer, u64 *barrier) {
    COPY_BOX("3d", ".multicast::cluster", "%6, %3, %4", ", %5;" COPY_TO, "h"((u16)((1 << CLUSTER) - 1)), "r"(0) : "memory");
}
// Arrives, for all of a warp, at the barrier of every block of the cluster.
__device__ __forceinline__ void arrive_all(u64 *barrier) {
    __syncwarp();
    if (threadIdx.x % WARP < CLUSTER)
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
                     ::"r"(shared_address(barrier)), "r"(threadIdx.x % WARP) : "memory");
}
// Its order among other accesses is that of what is volatile.
__device__ __forceinline__ void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d));
}
// The two numbers in a register.
__device__ __forceinline__ float low(bf16, u32 x) { return __int_as_float(x << 16); }
__device__ __forceinline__ float high(bf16, u32 x) { return __int_as_float(x & 0xffff0000u); }
__device__ __forceinline__ float low(f16, u32 x) { return to_float(f16{(u16)x}); }
__device__ __forceinline__ float high(f16, u32 x) { return to_float(f16{(u16)(x >> 16)}); }

typedef Vector<u32, 4> Piece;
__device__ __forceinline__ void unpack(float *x, const Piece &piece) {
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = k % 2 ? high(number_t(), piece.at[k / 2]) : low(number_t(), piece.at[k / 2]);
}

#define SUMS_16(at) SUMS_4(at), SUMS_4(at + 4), SUMS_4(at + 8), SUMS_4(at + 12)
#define SUMS_128 SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80), SUMS_16(96), SUMS_16(112)
#define SUM_NUMBERS_128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
    "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
    "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, " \
    "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
// d = a b, or d += a b if `add`: [64, 256] of [64, 16] and [16, 256]. The columns of the first tile are what is summed over; of
// the second the rows, where B_BY_ROWS.
#define DEFINE_WIDE_PRODUCT(TYPE) \
    __device__ __forceinline__ void multiply_wide(TYPE, float (&d)[128], u64 a, u64 b, bool add) { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." #TYPE "." #TYPE " " SUM_NUMBERS_128 ", %128, %129, add, 1, 1, 0, %131;\n}" \
                     : SUMS_128 : "l"(a), "l"(b), "r"((int)add), "n"(B_BY_ROWS)); \
    }
DEFINE_WIDE_PRODUCT(bf16)
DEFINE_WIDE_PRODUCT(f16)

// What tells a product of a tile, as `describe`, of an address that in a cluster names the block too. Where the rows are summed
// over, the next 64 columns lie 8192 bytes on.
__device__ __forceinline__ u64 describe_own(const void *tile) {
    return (u64)((shared_address(tile) & 0x3ffff) >> 4) | (u64)(8192 >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// What GELU makes of numbers, as `gelu_tanh`, and its slope there, as `gelu_tanh_slope`: all of them one stage after another, since
// what one needs takes long to come.
constexpr float SHARE_LINEAR = -2.0f * LOG2_E * GELU_SCALE, SHARE_CUBIC = SHARE_LINEAR * GELU_CUBIC;
#define EACH(COUNT) _Pragma("unroll") for (int k = 0; k < COUNT; k++)
template <int COUNT> __device__ __forceinline__ void gelu_each(float (&x)[COUNT], float (&slope)[COUNT]) {
    float share[COUNT];
    EACH(COUNT) share[k] = x[k] * fmaf(x[k] * x[k], SHARE_CUBIC, SHARE_LINEAR);
    EACH(COUNT) share[k] = power_of_two(share[k]);
    EACH(COUNT) share[k] += 1.0f;
    EACH(COUNT) asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(share[k]));
    EACH(COUNT) {
        const float gelu = x[k] * share[k], bend = fmaf(-gelu, share[k], gelu);
        // In an order in which nothing overflows where it is flat; of what is infinite the slope is no number.
        if (AFTER == GELU_KEEPING_SLOPE)
            slope[k] = fmaf(bend * x[k], x[k] * (6.0f * GELU_SCALE * GELU_CUBIC), fmaf(bend, 2.0f * GELU_SCALE, share[k]));
        x[k] = gelu;
    }
}

__device__ __forceinline__ Piece packed(const float *x) {
    Piece piece;
    EACH(4) piece.at[k] = pack(number_t(), x[k * 2], x[k * 2 + 1]);
    return piece;
}
// Two pairs of numbers, multiplied and rounded.
__device__ __forceinline__ u32 multiply_pairs(bf16, u32 a, u32 b) {
    u32 both;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
    return both;
}
__device__ __forceinline__ u32 multiply_pairs(f16, u32 a, u32 b) {
    u32 both;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
    return both;
}

// Where a turn's tile lies.
struct Tile {
    int row, column;
    __device__ __forceinline__ Tile(int turn, int rank) : row((turn / ACROSS * CLUSTER + rank) * TILE_ROWS), column(turn % ACROSS * TILE_COLUMNS) {}
};
// Goes round in turns.
template <int COUNT> struct Turn {
    int at = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() { if (++at == COUNT) at = 0, parity ^= 1; }
};

struct Place {
    u8 *shared;
    Barriers &at;
    int rank, first, apart;
    __device__ __forceinline__ u8 *stage(int i) const { return shared + i * STAGE; }
    __device__ __forceinline__ u8 *sums(int group) const { return shared + STAGES * STAGE + group * SUM_TILE; }
    // Of two tiles by turns: one is read while the next is written.
    __device__ __forceinline__ float *bias(int turn, int group) const { return (float *)sums(2) + (turn * 2 + group) * TILE_COLUMNS; }
    __device__ __forceinline__ float *column_sums(int turn, int warp) const { return bias(2, 0) + (turn * STORERS + warp) * TILE_COLUMNS; }
};

// Copies the tiles of both operands ahead.
__device__ __forceinline__ void copy_operands(const Place &here, const TensorMap &a, const TensorMap &b) {
    Turn<STAGES> stage;
    for (int turn = here.first; turn < ACROSS * DOWN; turn += here.apart) {
        const Tile tile(turn, here.rank);
        for (int step = 0; step < STEPS; step++, stage.next()) {
            u64 *const full = &here.at.full[stage.at];
            u8 *const to = here.stage(stage.at), *const half = to + A_BYTES + here.rank * (B_BYTES / 2);
            await(&here.at.empty[stage.at], stage.parity ^ 1);
            expect(full, STAGE);
            begin_box(to, a, step * STEP, tile.row, full);
            // Of the second operand, this block's half.
            if (B_BY_ROWS) begin_blocks_for_all(half, b, step * STEP, tile.column / 64 + here.rank * 2, full);
            else begin_box_for_all(half, b, step * STEP, tile.column + here.rank * 128, full);
        }
    }
}

// Multiplies, and leaves the sums of 64 rows, with the bias, for those who store.
__device__ __forceinline__ void multiply(const Place &here, const bias_t *bias) {
    const int group = threadIdx.x / GROUP_THREADS, member = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
    const u32 row = shared_address(here.sums(group)) + (member / WARP * 16 + lane % 16) * SUM_ROW;
    float d[128];
    Turn<STAGES> stage;
    int before = 0, count = 0;
    for (int turn = here.first; turn < ACROSS * DOWN; turn += here.apart, count++) {
        Vector<float, 2> two = {};
        const int column = Tile(turn, here.rank).column + member * 2;
        if (HAS_BIAS && column < COLUMNS) two = {{to_float(bias[column]), to_float(bias[column + 1])}};
        for (int step = 0; step < STEPS; step++, stage.next()) {
            const u8 *const from = here.stage(stage.at);
            await(&here.at.full[stage.at], stage.parity);
            open_products();
            const u64 left = describe_own(from + group * (A_BYTES / 2)), right = describe_own(from + A_BYTES);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u64 l = left + i * COLUMNS_16, r = right + i * (B_BY_ROWS ? ROWS_16 : COLUMNS_16);
                multiply_wide(number_t(), d, l, r, step > 0 || i > 0);
            }
            close_products();
            // The products of the step before are through.
            if (step > 0) {
                wait_products<1>();
                arrive_all(&here.at.empty[before]);
            }
            before = stage.at;
        }
        wait_products<0>();
#pragma unroll
        for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])::"memory");
        arrive_all(&here.at.empty[before]);
        float *const own_bias = here.bias(count % 2, group);
        if (HAS_BIAS) {
            *(Vector<float, 2> *)(own_bias + member * 2) = two;
            asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
        }
        await(&here.at.stored[group], count % 2 ^ 1);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            Vector<float, 2> added[8] = {};
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (HAS_BIAS) added[i] = *(const Vector<float, 2> *)(own_bias + (part * 8 + i) * 8 + lane % 4 * 2);
            u32 packed[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const float *const sum = d + part * 32 + i * 2;
                packed[i] = HAS_BIAS ? pack(number_t(), sum[0] + added[i / 2].at[0], sum[1] + added[i / 2].at[1]) : pack(number_t(), sum[0], sum[1]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                store_matrices(row + part * 128 + ((i * 2 + lane / 16) ^ lane % 8) * 16, packed[i * 4], packed[i * 4 + 1], packed[i * 4 + 2], packed[i * 4 + 3]);
        }
        arrive(&here.at.summed[group]);
    }
}

// Adds up what the warps that store have of a tile's columns, one after another, and stores it.
__device__ __forceinline__ void store_column_sums(const Place &here, const float (&sums)[8], const Tile &tile, int turn, float *to) {
    const int member = threadIdx.x - 2 * GROUP_THREADS, warp = member / WARP, lane = member % WARP;
    EACH(8) here.column_sums(turn, warp)[lane * 8 + k] = sums[k];
    asm volatile("bar.sync 3, %0;" ::"n"(STORERS * WARP) : "memory");
    for (int column = member * 2; column < TILE_COLUMNS && tile.column + column < COLUMNS; column += STORERS * WARP * 2) {
        Vector<float, 2> all = {};
#pragma unroll
        for (int i = 0; i < STORERS; i++) {
            const Vector<float, 2> one = *(const Vector<float, 2> *)(here.column_sums(turn, i) + column);
            all.at[0] += one.at[0], all.at[1] += one.at[1];
        }
        *(Vector<float, 2> *)(to + (u64)(tile.row / TILE_ROWS) * COLUMNS + tile.column + column) = all;
    }
}

// Half a tile, and what a lane of those who store has of it: of each of its warp's rows, which are every third, eight neighbors.
struct Share {
    const u8 *sums;
    int first, column, warp, lane;
    __device__ __forceinline__ int row(int i) const { return i * STORERS + warp; }
    __device__ __forceinline__ bool has(int i) const {
        const bool is_row = (i * STORERS + STORERS <= 64 || row(i) < 64) && (ROWS % TILE_ROWS == 0 || first + row(i) < ROWS);
        return is_row && (COLUMNS % TILE_COLUMNS == 0 || column < COLUMNS);
    }
    // Where it lies in a result.
    __device__ __forceinline__ u64 place(int i) const { return (u64)(first + row(i)) * COLUMNS + column; }
    __device__ __forceinline__ Piece product(int i) const { return *(const Piece *)(sums + row(i) * SUM_ROW + (lane ^ row(i) % 8) * 16); }
};

// GELU of the products, two rows at a time.
__device__ __forceinline__ void store_gelu(const Share &share, number_t *d, number_t *kept) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i += 2) {
        Piece product[2] = {};
        float x[16], slope[16];
        EACH(2) if (share.has(i + k)) product[k] = share.product(i + k);
        EACH(2) unpack(x + k * 8, product[k]);
        gelu_each(x, slope);
        EACH(2) {
            if (!share.has(i + k)) continue;
            if (AFTER == GELU_KEEPING) *(Piece *)(kept + share.place(i + k)) = product[k];
            if (AFTER == GELU_KEEPING_SLOPE) *(Piece *)(kept + share.place(i + k)) = packed(slope + k * 8);
            *(Piece *)(d + share.place(i + k)) = packed(x + k * 8);
        }
    }
}

// The products times what came of the factors, which the columns' sums are of.
__device__ __forceinline__ void store_times(const Share &share, const Piece (&factors)[OWN_ROWS], number_t *d, float (&sums)[8]) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        if (!share.has(i)) continue;
        const Piece product = share.product(i);
        Piece result;
        float x[8];
        EACH(4) result.at[k] = multiply_pairs(number_t(), product.at[k], factors[i].at[k]);
        *(Piece *)(d + share.place(i)) = result;
        unpack(x, result);
        EACH(8) sums[k] += x[k];
    }
}

// Makes what is stored of the sums.
__device__ __forceinline__ void store(const Place &here, number_t *d, number_t *kept, float *column_sums) {
    const int warp = threadIdx.x / WARP - 8, lane = threadIdx.x % WARP;
    int count = 0;
    for (int turn = here.first; turn < ACROSS * DOWN; turn += here.apart, count++) {
        const Tile tile(turn, here.rank);
        float sums[8] = {};
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const Share share = {here.sums(half), tile.row + half * 64, tile.column + lane * 8, warp, lane};
            // What the products are multiplied by comes while they are still computed.
            Piece factors[OWN_ROWS];
            EACH(OWN_ROWS) if (AFTER == TIMES && share.has(k)) factors[k] = *(const Piece *)(kept + share.place(k));
            await(&here.at.summed[half], count % 2);
            if (AFTER == TIMES) store_times(share, factors, d, sums);
            else store_gelu(share, d, kept);
            arrive(&here.at.stored[half]);
        }
        if (HAS_COLUMN_SUMS) store_column_sums(here, sums, tile, count % 2, column_sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
followed_product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, number_t *d, const bias_t *bias, number_t *kept,
                 float *column_sums) {
    extern __shared__ __align__(1024) u8 shared[];
    Barriers &at = *(Barriers *)(shared + SHARED - BARRIERS);
    const Place here = {shared, at, (int)cluster_rank(), (int)blockIdx.x / CLUSTER, (int)gridDim.x / CLUSTER};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            start_barrier(&at.full[i], 1);
            start_barrier(&at.empty[i], CLUSTER * 8);
        }
        for (int i = 0; i < 2; i++) {
            start_barrier(&at.summed[i], 4);
            start_barrier(&at.stored[i], STORERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_barrier();
    if (warp < 8) multiply(here, bias);
    else if (warp < 8 + STORERS) store(here, d, kept, column_sums);
    else if (threadIdx.x % WARP == 0) copy_operands(here, a, b);
    __syncwarp();
    // Nothing comes to a block that is gone.
    cluster_barrier();
}
