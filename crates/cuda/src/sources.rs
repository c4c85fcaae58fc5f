//! The texts of the kernels, by name.

macro_rules! sources {
    ($($name:ident = $file:literal,)*) => {
        $(
            #[doc = concat!("`kernels/", $file, "`")]
            pub const $name: &str = include_str!(concat!("../kernels/", $file));
        )*

        #[cfg(test)]
        pub(crate) const ALL: &[&str] = &[$($name),*];
    };
}

sources! {
    ADAMW = "adamw.cu",
    APPEND = "append.cu",
    ATTENTION = "attention.cu",
    ATTENTION_DELTA = "attention_delta.cu",
    ATTENTION_GRADIENT = "attention_gradient.cu",
    ATTENTION_GRADIENT_MMA = "attention_gradient_mma.cu",
    ATTENTION_GRADIENT_WGMMA = "attention_gradient_wgmma.cu",
    ATTENTION_MMA = "attention_mma.cu",
    ATTENTION_MMA_TILES = "attention_mma.cuh",
    ATTENTION_PLACES = "attention.cuh",
    ATTENTION_TILES = "attention_tiles.cuh",
    ATTENTION_WGMMA = "attention_wgmma.cu",
    ATTENTION_WGMMA_TILES = "attention_wgmma.cuh",
    CACHED_ATTENTION = "cached_attention.cu",
    CACHED_ATTENTION_JOIN = "cached_attention_join.cu",
    CHECK_FINITE = "check_finite.cu",
    CONV = "conv.cu",
    CROSS_ENTROPY = "cross_entropy.cu",
    CUMULATIVE = "cumulative.cu",
    DROPOUT = "dropout.cu",
    EMBEDDING = "embedding.cu",
    EMBEDDING_GRADIENT = "embedding_gradient.cu",
    FOLLOWED_PRODUCT = "followed_product.cu",
    GATHER = "gather.cu",
    INTEGERS = "integers.cu",
    LION = "lion.cu",
    MMA = "mma.cuh",
    NORM = "norm.cu",
    PHILOX = "philox.cu",
    POOL = "pool.cu",
    PRODUCT_CHOICE = "product_choice.cu",
    RANK = "rank.cuh",
    REDUCE = "reduce.cu",
    ROTARY = "rotary.cu",
    ROWS_PRODUCT = "rows_product.cu",
    SAMPLE = "sample.cu",
    SCATTER = "scatter.cu",
    SGD = "sgd.cu",
    SHARE_SUMS = "share_sums.cu",
    SOFTMAX = "softmax.cu",
    SORT = "sort.cu",
    TOP_K = "top_k.cu",
    TREE_SUM = "tree_sum.cu",
    UNIFORM = "uniform.cu",
    UPDATE = "update.cu",
    WGMMA = "wgmma.cuh",
}
