//! The texts of the kernels, by name.

macro_rules! sources {
    ($($name:ident = $file:literal,)*) => {
        $(
            #[doc = concat!("`kernels/", $file, "`")]
            pub const $name: &str = include_str!(concat!("../kernels/", $file));
        )*
    };
}

sources! {
    COLUMN_SUMS = "column_sums.cu",
    CROSS_ENTROPY = "cross_entropy.cu",
    REDUCE = "reduce.cu",
    ATTENTION_PLACES = "attention.cuh",
    ATTENTION_TILES = "attention_tiles.cuh",
    ATTENTION = "attention.cu",
    ATTENTION_GRADIENT = "attention_gradient.cu",
    ATTENTION_DELTA = "attention_delta.cu",
    MMA = "mma.cuh",
    ATTENTION_MMA_TILES = "attention_mma.cuh",
    ATTENTION_MMA = "attention_mma.cu",
    ATTENTION_GRADIENT_MMA = "attention_gradient_mma.cu",
    SOFTMAX = "softmax.cu",
}
