//! Sizes with a name.

use super::{Family, ModelConfig, RopeScaling};

/// A name for a model's sizes.
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is, for help.
    pub about: &'static str,
    config: fn() -> ModelConfig,
}

impl Preset {
    /// The sizes. The vocabulary is 0 where the tokenizer decides it.
    pub fn config(&self) -> ModelConfig {
        (self.config)()
    }
}

/// Every preset, in order of family and size.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "nano",
        about: "GPT-2, 2 layers of width 32: to try things out",
        config: || ModelConfig::gpt2(0, 32, 2, 2, 32),
    },
    Preset {
        name: "tiny",
        about: "GPT-2, 4 layers of width 128: minutes on a laptop",
        config: || ModelConfig::gpt2(0, 128, 4, 4, 64),
    },
    Preset {
        name: "small",
        about: "GPT-2, 6 layers of width 384: about 10 million weights",
        config: || ModelConfig::gpt2(0, 384, 6, 6, 256),
    },
    Preset {
        name: "gpt2",
        about: "GPT-2 as published, 124 million weights",
        config: || ModelConfig::gpt2(50257, 768, 12, 12, 1024),
    },
    Preset {
        name: "gpt2-medium",
        about: "GPT-2 as published, 355 million weights",
        config: || ModelConfig::gpt2(50257, 1024, 24, 16, 1024),
    },
    Preset {
        name: "gpt2-large",
        about: "GPT-2 as published, 774 million weights",
        config: || ModelConfig::gpt2(50257, 1280, 36, 20, 1024),
    },
    Preset {
        name: "gpt2-xl",
        about: "GPT-2 as published, 1.6 billion weights",
        config: || ModelConfig::gpt2(50257, 1600, 48, 25, 1024),
    },
    Preset {
        name: "llama-tiny",
        about: "Llama, 4 layers of width 128, 2 heads of keys and values",
        config: || ModelConfig { kv_heads: 2, ..ModelConfig::llama(0, 128, 4, 4, 64) },
    },
    Preset {
        name: "llama-small",
        about: "Llama, 6 layers of width 384: about 10 million weights",
        config: || ModelConfig { kv_heads: 2, ..ModelConfig::llama(0, 384, 6, 6, 256) },
    },
    Preset {
        name: "llama-100m",
        about: "Llama, 12 layers of width 768: about 100 million weights with a vocabulary of 32000",
        config: || ModelConfig { kv_heads: 4, ..ModelConfig::llama(0, 768, 12, 12, 1024) },
    },
    Preset {
        name: "llama-1b",
        about: "Llama, 22 layers of width 2048: 1.1 billion weights with a vocabulary of 32000",
        config: || ModelConfig { kv_heads: 4, feed_forward: 5632, ..ModelConfig::llama(0, 2048, 22, 32, 2048) },
    },
    Preset {
        name: "llama3-1b",
        about: "Llama 3.2 as published, 1.2 billion weights, with a context of 2048",
        config: || ModelConfig {
            kv_heads: 8,
            feed_forward: 8192,
            tie_embeddings: true,
            rope_theta: 500_000.0,
            rope_scaling: Some(RopeScaling {
                factor: 32.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 8192,
            }),
            ..ModelConfig::llama(128_256, 2048, 16, 32, 2048)
        },
    },
    Preset {
        name: "mistral-7b",
        about: "Mistral 0.1 as published, 7.2 billion weights, with a context of 8192 and a window of 4096",
        config: || ModelConfig {
            kv_heads: 8,
            feed_forward: 14_336,
            window: Some(4096),
            ..ModelConfig::new(Family::Mistral, 32_000, 4096, 32, 32, 8192)
        },
    },
    Preset {
        name: "qwen2-0.5b",
        about: "Qwen2 as published, 494 million weights, with a context of 2048",
        config: || ModelConfig {
            kv_heads: 2,
            feed_forward: 4864,
            tie_embeddings: true,
            norm_epsilon: 1e-6,
            rope_theta: 1e6,
            ..ModelConfig::new(Family::Qwen2, 151_936, 896, 24, 14, 2048)
        },
    },
    Preset {
        name: "qwen3-0.6b",
        about: "Qwen3 as published, 596 million weights, with a context of 2048",
        config: || ModelConfig {
            kv_heads: 8,
            feed_forward: 3072,
            tie_embeddings: true,
            norm_epsilon: 1e-6,
            rope_theta: 1e6,
            head_size: Some(128),
            ..ModelConfig::new(Family::Qwen3, 151_936, 1024, 28, 16, 2048)
        },
    },
];

impl ModelConfig {
    /// The sizes of this name, if there is such a preset.
    pub fn preset(name: &str) -> Option<ModelConfig> {
        PRESETS.iter().find(|preset| preset.name == name).map(Preset::config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::CausalModel;

    #[test]
    fn every_preset_is_possible_and_has_a_name_of_its_own() {
        for (index, preset) in PRESETS.iter().enumerate() {
            preset.config().validate_without_vocabulary().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
            assert_eq!(ModelConfig::preset(preset.name), Some(preset.config()));
            assert!(PRESETS[..index].iter().all(|other| other.name != preset.name), "{} twice", preset.name);
        }
        assert_eq!(ModelConfig::preset("gpt-5"), None);
    }

    #[test]
    fn published_models_have_the_published_number_of_weights() {
        let count = |name: &str| ModelConfig::preset(name).unwrap().parameter_count();
        assert_eq!(count("gpt2"), 124_439_808);
        assert_eq!(count("gpt2-medium"), 354_823_168);
        assert_eq!(count("gpt2-large"), 774_030_080);
        assert_eq!(count("gpt2-xl"), 1_557_611_200);
        assert_eq!(count("llama3-1b"), 1_235_814_400);
        assert_eq!(count("mistral-7b"), 7_241_732_096);
        assert_eq!(count("qwen2-0.5b"), 494_032_768);
        assert_eq!(count("qwen3-0.6b"), 596_049_920);
        let billion = ModelConfig { vocabulary: 32000, ..ModelConfig::preset("llama-1b").unwrap() };
        assert_eq!(billion.parameter_count(), 1_100_048_384);
    }
}
