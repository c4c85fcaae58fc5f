// The sum of a number of each block, by the tree that lanes have. The target may be one of the blocks.
extern "C" __global__ void __launch_bounds__(256) tree_sum(BLOCKS, float *target, u64 numbers) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < numbers) target[i] = TREE;
}
