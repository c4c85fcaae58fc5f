//! Every key of a `config.json` that is understood, in the list here or in that of its family. A key that is in none may
//! change what a model computes, so it is refused.

/// What a key may hold.
pub(crate) enum Rule {
    /// It states what is computed, and is read.
    Read,
    /// Nothing that is computed here depends on it.
    Any,
    /// Only with these values, written as JSON, it says what is computed anyway.
    Only(&'static [&'static str]),
}

use Rule::{Any, Only, Read};

/// Keys with a rule, in the lists of a family.
pub(crate) type Keys = &'static [(Rule, &'static [&'static str])];

/// Keys that any model's configuration may have.
pub(super) const COMMON: Keys = &[
    (Read, &["model_type", "vocab_size", "tie_word_embeddings"]),
    // Where it came from and how it is stored.
    (Any, &["_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "dtype"]),
    (Any, &["torch_dtype", "unsloth_fixed", "unsloth_version"]),
    // Special tokens, which tokenizing and generation look up themselves.
    (Any, &["bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"]),
    (Any, &["tokenizer_class", "prefix"]),
    // How others run or train it.
    (Any, &["use_cache", "initializer_range", "output_attentions", "output_hidden_states", "return_dict"]),
    (Any, &["torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "gradient_checkpointing"]),
    (Any, &["attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "is_decoder"]),
    (Any, &["_attn_implementation_internal", "_experts_implementation", "_output_attentions"]),
    // Tasks other than predicting the next token.
    (Any, &["problem_type", "finetuning_task", "id2label", "label2id", "num_labels", "task_specific_params"]),
    // How others sample from it.
    (Any, &["max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"]),
    (Any, &["diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"]),
    (Any, &["length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"]),
    (Any, &["num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id"]),
    (Any, &["forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"]),
    (Any, &["suppress_tokens", "begin_suppress_tokens"]),
    // Other models.
    (Only(&["false", "null"]), &["is_encoder_decoder", "tie_encoder_decoder", "add_cross_attention"]),
    (Only(&["null"]), &["cross_attention_hidden_size", "quantization_config", "per_layer_config"]),
    (Only(&["{}", "null"]), &["pruned_heads"]),
];

/// Keys of what states rotary positions.
pub(super) const ROTARY: Keys =
    &[(Read, &["rope_theta", "rope_type", "type"]), (Only(&["1.0", "1"]), &["partial_rotary_factor"])];

/// Keys of what states how Llama 3 scales them.
pub(super) const LLAMA3_ROTARY: Keys =
    &[(Read, &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])];

/// The rule of a key, if it is in one of the lists.
pub(super) fn rule(lists: &[Keys], key: &str) -> Option<&'static Rule> {
    let mut rows = lists.iter().copied().flatten();
    rows.find(|(_, keys)| keys.contains(&key)).map(|(rule, _)| rule)
}
