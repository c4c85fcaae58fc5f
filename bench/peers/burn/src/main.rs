//! A GPT-2's training step in burn, in f32 on its `flex` backend.

#[path = "../../harness.rs"]
mod harness;

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::gelu;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData};
use harness::{Request, Sizes, tokens};

const INITIAL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

#[derive(Module, Debug)]
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
    fn new(sizes: Sizes, device: &Device) -> Block {
        let width = sizes.width;
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).with_initializer(INITIAL).init(device);
        Block {
            attention_norm: LayerNormConfig::new(width).init(device),
            queries_keys_values: linear(width, 3 * width),
            attention_projection: linear(width, width),
            feed_forward_norm: LayerNormConfig::new(width).init(device),
            expansion: linear(width, 4 * width),
            contraction: linear(4 * width, width),
            heads: sizes.heads,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, sequence, width] = x.dims();
        let parts = self.queries_keys_values.forward(self.attention_norm.forward(x.clone()));
        let heads = |part: usize| {
            let part = parts.clone().narrow(2, part * width, width);
            part.reshape([batch, sequence, self.heads, width / self.heads]).swap_dims(1, 2)
        };
        let causal = AttentionModuleOptions { scale: None, softcap: None, is_causal: true };
        let found = attention(heads(0), heads(1), heads(2), None, None, causal);
        let x = x + self.attention_projection.forward(found.swap_dims(1, 2).reshape([batch, sequence, width]));
        let expanded = gelu(self.expansion.forward(self.feed_forward_norm.forward(x.clone())));
        x + self.contraction.forward(expanded)
    }
}

#[derive(Module, Debug)]
struct Gpt2 {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(sizes: Sizes, device: &Device) -> Gpt2 {
        let table = |rows| EmbeddingConfig::new(rows, sizes.width).with_initializer(INITIAL).init(device);
        Gpt2 {
            tokens: table(sizes.vocabulary),
            positions: table(sizes.sequence),
            blocks: (0..sizes.layers).map(|_| Block::new(sizes, device)).collect(),
            norm: LayerNormConfig::new(sizes.width).init(device),
        }
    }

    fn logits(&self, ids: Tensor<2, Int>, places: Tensor<2, Int>) -> Tensor<2> {
        let mut x = self.tokens.forward(ids) + self.positions.forward(places);
        for block in &self.blocks {
            x = block.forward(x);
        }
        let hidden: Tensor<2> = self.norm.forward(x).flatten(0, 1);
        hidden.matmul(self.tokens.weight.val().transpose())
    }
}

fn main() {
    let request = Request::read();
    let sizes = request.sizes;
    let device = Device::flex().autodiff();
    let integers = |numbers: Vec<u32>| numbers.into_iter().map(i64::from).collect::<Vec<_>>();
    let ids = integers(tokens(sizes.batch * sizes.sequence + 1, sizes.vocabulary));
    let (shape, count) = ([sizes.batch, sizes.sequence], sizes.batch * sizes.sequence);
    let inputs = Tensor::<2, Int>::from_data(TensorData::new(ids[..count].to_vec(), shape), &device);
    let targets = Tensor::<1, Int>::from_data(TensorData::new(ids[1..].to_vec(), [count]), &device);
    let places = Tensor::<1, Int>::arange(0..sizes.sequence as i64, &device).unsqueeze::<2>();
    let loss_of: CrossEntropyLoss = CrossEntropyLossConfig::new().init(&device);
    let mut optimizer = AdamWConfig::new().with_beta_2(0.95).with_weight_decay(0.1).init();
    let mut model = Some(Gpt2::new(sizes, &device));
    harness::measure(&request, || {
        let current = model.take().expect("a model after each step");
        let loss = loss_of.forward(current.logits(inputs.clone(), places.clone()), targets.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(3e-4, current, gradients));
        assert!(loss.into_scalar::<f32>().is_finite());
        device.sync().expect("a step that ends");
    });
}
