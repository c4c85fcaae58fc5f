// The instructions of tensor cores that work a warp at a time, and of copies that run beside the arithmetic.

__device__ __forceinline__ u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Four matrices of 8 by 8 numbers of 16 bits: lane l gives where row l % 8 of matrix l / 8 begins, and gets of each matrix
// the numbers 2 (l % 4) and one more of row l / 4.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(u32 (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// d += a b of matrices [16, 16] and [16, 8]. Lane l has of d the rows l / 4 and 8 more, and in each the columns 2 (l % 4)
// and one more.
__device__ __forceinline__ void multiply_add(bf16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(f16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Joins what the four lanes of a row have.
template <class Join> __device__ __forceinline__ float row_all(float x, Join join) {
    x = join(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return join(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Two numbers rounded into one register, the first in the lower half.
__device__ __forceinline__ u32 pack(bf16, float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ u32 pack(f16, float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Copies BYTES (4 or 16) into shared memory, or zeros where there is nothing to copy; the address must be good all the same.
template <int BYTES> __device__ __forceinline__ void begin_copy(void *to, const void *from, bool there) {
    const int bytes = there ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Waits for all the copies that this thread began; others see them after a barrier.
__device__ __forceinline__ void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Ends a group of copies; and waits for all groups but the last LEFT ones.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
