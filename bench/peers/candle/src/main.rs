//! A GPT-2's training step in candle, in f32. Its fused layer norm and softmax have no gradient, so that the composed
//! ones are used, as its own training code must.

#[path = "../../harness.rs"]
mod harness;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::{layer_norm_slow, softmax};
use candle_nn::{AdamW, Embedding, Init, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use harness::{Request, Sizes, tokens};

const INITIAL: Init = Init::Randn { mean: 0.0, stdev: 0.02 };

struct LayerNorm {
    gain: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    fn new(width: usize, weights: VarBuilder<'_>) -> Result<LayerNorm> {
        let gain = weights.get_with_hints(width, "gain", Init::Const(1.0))?;
        Ok(LayerNorm { gain, bias: weights.get_with_hints(width, "bias", Init::Const(0.0))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm_slow(x, &self.gain, &self.bias, 1e-5)
    }
}

struct Block {
    attention_norm: LayerNorm,
    queries_keys_values: Linear,
    attention_projection: Linear,
    feed_forward_norm: LayerNorm,
    expansion: Linear,
    contraction: Linear,
    heads: usize,
}

impl Block {
    fn new(sizes: Sizes, weights: VarBuilder<'_>) -> Result<Block> {
        let width = sizes.width;
        let linear = |inputs, outputs, name| -> Result<Linear> {
            let weights = weights.pp(name);
            let matrix = weights.get_with_hints((outputs, inputs), "weight", INITIAL)?;
            Ok(Linear::new(matrix, Some(weights.get_with_hints(outputs, "bias", Init::Const(0.0))?)))
        };
        Ok(Block {
            attention_norm: LayerNorm::new(width, weights.pp("attention_norm"))?,
            queries_keys_values: linear(width, 3 * width, "queries_keys_values")?,
            attention_projection: linear(width, width, "attention_projection")?,
            feed_forward_norm: LayerNorm::new(width, weights.pp("feed_forward_norm"))?,
            expansion: linear(width, 4 * width, "expansion")?,
            contraction: linear(4 * width, width, "contraction")?,
            heads: sizes.heads,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, sequence, width) = x.dims3()?;
        let head_size = width / self.heads;
        let parts = self.queries_keys_values.forward(&self.attention_norm.forward(x)?)?;
        let heads = |part: usize| -> Result<Tensor> {
            let part = parts.narrow(2, part * width, width)?;
            part.reshape((batch, sequence, self.heads, head_size))?.transpose(1, 2)?.contiguous()
        };
        let scores = (heads(0)?.matmul(&heads(1)?.t()?)? * (head_size as f64).powf(-0.5))?;
        let found = softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&heads(2)?)?;
        let found = found.transpose(1, 2)?.reshape((batch, sequence, width))?;
        let x = (x + self.attention_projection.forward(&found)?)?;
        let expanded = self.expansion.forward(&self.feed_forward_norm.forward(&x)?)?.gelu()?;
        &x + self.contraction.forward(&expanded)?
    }
}

struct Gpt2 {
    tokens: Embedding,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(sizes: Sizes, weights: VarBuilder<'_>) -> Result<Gpt2> {
        let table = |rows, name| weights.get_with_hints((rows, sizes.width), name, INITIAL);
        let blocks = (0..sizes.layers).map(|layer| Block::new(sizes, weights.pp(layer))).collect::<Result<_>>()?;
        Ok(Gpt2 {
            tokens: Embedding::new(table(sizes.vocabulary, "tokens")?, sizes.width),
            positions: table(sizes.sequence, "positions")?,
            blocks,
            norm: LayerNorm::new(sizes.width, weights.pp("norm"))?,
        })
    }

    fn logits(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut x = self.tokens.forward(ids)?.broadcast_add(&self.positions)?;
        for block in &self.blocks {
            x = block.forward(&x, mask)?;
        }
        self.norm.forward(&x)?.flatten(0, 1)?.matmul(&self.tokens.embeddings().t()?)
    }
}

fn main() -> Result<()> {
    let request = Request::read();
    let (sizes, device) = (request.sizes, Device::Cpu);
    let variables = VarMap::new();
    let model = Gpt2::new(sizes, VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let settings = ParamsAdamW { lr: 3e-4, beta2: 0.95, weight_decay: 0.1, ..Default::default() };
    let mut optimizer = AdamW::new(variables.all_vars(), settings)?;
    let count = sizes.batch * sizes.sequence;
    let ids = tokens(count + 1, sizes.vocabulary);
    let inputs = Tensor::from_slice(&ids[..count], (sizes.batch, sizes.sequence), &device)?;
    let targets = Tensor::from_slice(&ids[1..], count, &device)?;
    let length = sizes.sequence;
    let hidden = |pair: usize| if pair % length > pair / length { f32::NEG_INFINITY } else { 0.0 };
    let mask = Tensor::from_vec((0..length * length).map(hidden).collect(), (1, 1, length, length), &device)?;
    let mut step = || -> Result<()> {
        let loss = candle_nn::loss::cross_entropy(&model.logits(&inputs, &mask)?, &targets)?;
        optimizer.backward_step(&loss)?;
        assert!(loss.to_scalar::<f32>()?.is_finite());
        Ok(())
    };
    harness::measure(&request, || step().expect("a step"));
    Ok(())
}
