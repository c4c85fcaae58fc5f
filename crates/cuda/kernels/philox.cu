// Random bits that are a function of a key, a stream and an index: Philox4x32-10, the same as on the CPU. Within each group of
// 64 indices, the first words of sixteen counters come first, then their second words and so on.
struct Words {
    u32 at[4];
};

__device__ __forceinline__ Words philox(u64 counter, u32 stream, u32 left, u32 right) {
    constexpr u32 FIRST = 0xd2511f53, SECOND = 0xcd9e8d57;
    u32 a = (u32)counter, b = (u32)(counter >> 32), c = stream, d = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 first_high = __umulhi(a, FIRST), first_low = a * FIRST;
        const u32 second_high = __umulhi(c, SECOND), second_low = c * SECOND;
        a = second_high ^ b ^ left;
        b = second_low;
        c = first_high ^ d ^ right;
        d = first_low;
        left += 0x9e3779b9;
        right += 0xbb67ae85;
    }
    return {a, b, c, d};
}

// The index of a counter's word.
__device__ __forceinline__ index_t index_of(index_t counter, u32 word) { return counter / 16 * 64 + counter % 16 + 16 * word; }
