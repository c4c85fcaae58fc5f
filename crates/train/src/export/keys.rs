//! Every key of a `config.json` that is understood. A key that is in no list here may change what a model computes, so
//! it is refused.

/// What a key may hold.
pub(super) enum Rule {
    /// It states what is computed, and is read.
    Read,
    /// Nothing that is computed here depends on it.
    Any,
    /// Only with these values, written as JSON, it says what is computed anyway.
    Only(&'static [&'static str]),
}

use Rule::{Any, Only, Read};

/// Keys with a rule, in the lists of a family.
pub(super) type Keys = &'static [(Rule, &'static [&'static str])];

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

/// Keys of GPT-2.
pub(super) const GPT2: Keys = &[
    (Read, &["n_embd", "n_layer", "n_head", "n_inner", "n_positions", "layer_norm_epsilon"]),
    // Other names of the same sizes.
    (Read, &["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]),
    (Any, &["n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "predict_special_tokens"]),
    (Any, &["summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"]),
    (Any, &["summary_first_dropout"]),
    (Only(&["\"gelu_new\"", "\"gelu_pytorch_tanh\""]), &["activation_function"]),
    (Only(&["true"]), &["scale_attn_weights"]),
    (Only(&["false"]), &["scale_attn_by_inverse_layer_idx"]),
];

/// Keys of Llama.
pub(super) const LLAMA: Keys = &[
    (Read, &["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"]),
    (Read, &["intermediate_size", "max_position_embeddings", "rms_norm_eps"]),
    (Read, &["rope_theta", "rope_parameters", "rope_scaling"]),
    (Any, &["attention_dropout", "pretraining_tp"]),
    (Only(&["\"silu\"", "\"swish\""]), &["hidden_act"]),
    (Only(&["false"]), &["attention_bias", "mlp_bias"]),
    (Only(&["false", "null"]), &["rope_interleaved", "use_sliding_window"]),
    (Only(&["null"]), &["sliding_window"]),
    (Only(&["1.0", "1", "null"]), &["partial_rotary_factor"]),
];

/// Keys of what states Llama's rotary positions.
pub(super) const ROTARY: Keys =
    &[(Read, &["rope_theta", "rope_type", "type"]), (Only(&["1.0", "1"]), &["partial_rotary_factor"])];

/// The rule of a key, if it is in one of the lists.
pub(super) fn rule(lists: &[Keys], key: &str) -> Option<&'static Rule> {
    let mut rows = lists.iter().copied().flatten();
    rows.find(|(_, keys)| keys.contains(&key)).map(|(rule, _)| rule)
}
