// What runs beside the arithmetic: barriers that say when it is done, and copies of whole rows by the copy engine.

// Lets products of warpgroups and the copy engine see what this thread wrote to shared memory, after the next barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier at which warps say that they have come, and wait for the others later.
__device__ __forceinline__ void start_barrier(u64 *barrier, u32 warps) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(warps) : "memory");
}
// For all of a warp, once each time.
__device__ __forceinline__ void arrive(u64 *barrier) {
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(barrier)) : "memory");
}
// Waits until all have come; `parity` is 0 the first time, then 1, and so on in turn.
__device__ __forceinline__ void await(u64 *barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Begins to copy bytes into shared memory, a multiple of 16 from where 16 divides both addresses; one thread does, at a barrier
// of one. Whoever awaits the barrier sees them.
__device__ __forceinline__ void begin_row(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// Begins to copy the other way what was published before a barrier.
__device__ __forceinline__ void begin_row_back(void *to, const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;"
                 ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
// Waits, in the thread that began them, until what is copied back may be overwritten; and until it is there.
__device__ __forceinline__ void wait_rows_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_rows_back() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
