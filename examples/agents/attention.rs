//! A policy that looks back at all of its episode.

use super::policy::{Acting, HIDDEN_GAIN, LOGITS_GAIN, Policy, linear};
use gradus::{DType, Parameters, Role, Tensor};

/// One layer of attention over what was seen since the episode began. Acting, it keeps keys and values in a cache and adds a
/// place at each step; updated, it takes whole episodes at once.
pub struct Attention {
    pub width: usize,
    pub heads: usize,
    /// Steps of an episode. All episodes have as many, so that environments are at the same place.
    pub steps: usize,
    pub actions: usize,
}

/// What is seen and what is asked of the past and told to the future by it: [b, h, t, width / h] but for the first.
struct Projected {
    x: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
}

impl Attention {
    /// From observations [b, t, numbers].
    fn projected(&self, parameters: &Parameters, observations: &Tensor) -> Projected {
        let x = linear(parameters, "seen", observations, self.width, HIDDEN_GAIN).tanh(); // [b, t, width]
        let split = |name: &str| {
            let sizes = [x.size(0), x.size(1), self.heads, self.width / self.heads];
            linear(parameters, name, &x, self.width, 1.0).reshape(sizes).transpose(1, 2) // [b, h, t, width / h]
        };
        Projected { queries: split("query"), keys: split("key"), values: split("value"), x }
    }

    /// Logits and values from what is seen [b, t, width] and found in the past [b, h, t, width / h].
    fn decided(&self, parameters: &Parameters, x: &Tensor, found: &Tensor) -> (Tensor, Tensor) {
        let found = found.transpose(1, 2).reshape(x.shape()); // [b, t, width]
        let both = Tensor::concat(&[x, &found], -1); // [b, t, 2 width]
        let hidden = linear(parameters, "hidden", &both, self.width, HIDDEN_GAIN).tanh(); // [b, t, width]
        let logits = linear(parameters, "actor", &hidden, self.actions, LOGITS_GAIN); // [b, t, actions]
        (logits, linear(parameters, "critic", &hidden, 1, 1.0).squeeze(-1))
    }
}

impl Policy for Attention {
    fn span(&self) -> usize {
        self.steps
    }

    fn evaluate(&self, parameters: &Parameters, observations: &Tensor) -> (Tensor, Tensor) {
        let Projected { x, queries, keys, values } = self.projected(parameters, observations);
        self.decided(parameters, &x, &queries.attention(&keys, &values, true))
    }

    fn act(&self, parameters: &Parameters, observations: &Tensor, place: &Tensor) -> Acting {
        let Projected { x, queries, keys, values } = self.projected(parameters, &observations.unsqueeze(1));
        let cache = |name: &str| {
            let sizes = [x.size(0), self.heads, self.steps, self.width / self.heads];
            x.trace().zero_state_with_role(name, Role::Cache, DType::F32, sizes)
        };
        let caches = ["cache.keys", "cache.values"].map(cache);
        let (found, appended) = queries.cached_attention(caches.each_ref(), [&keys, &values], place, None);
        let (logits, values) = self.decided(parameters, &x, &found);
        let remembered = caches.into_iter().zip(appended).collect();
        Acting { logits: logits.squeeze(1), values: values.squeeze(1), remembered }
    }
}
