//! What ranks exchange in a step, and in how few bytes they had better.

use crate::numbers::{bytes_to_three_digits as size, short_time};
use crate::table::line;
use gradus_comm::Link;
use gradus_train::config::{Compression, TrainConfig};
use gradus_train::lanes::Lanes;
use gradus_train::models::CausalModel;
use gradus_train::ranks::bytes_of_step;
use serde::Serialize;

/// What is exchanged may take this share of what is computed.
const SHARE: f64 = 0.1;
/// And this one, if lanes meet seldom.
const SHARE_OF_MEETINGS: f64 = 0.05;

/// What ranks exchange over a link.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    /// Bytes a second of the link, as it was stated or measured.
    pub link_bytes_per_second: f64,
    /// Seconds of an empty message.
    pub link_seconds: f64,
    /// By method.
    pub methods: Vec<Method>,
    /// The options to choose; none: those there are.
    pub recommended: Option<String>,
}

/// A way to exchange gradients.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// As it is chosen by `--compress`.
    pub compress: String,
    /// Bytes that a rank sends a step.
    pub bytes: u64,
    /// What that takes.
    pub seconds: f64,
}

impl Traffic {
    /// Of a run whose steps take so long to compute.
    pub fn of(config: &TrainConfig, link: Link, computing: f64) -> Traffic {
        let lanes = Lanes::at(config.lanes, config.place);
        let shapes: Vec<_> = config.model.parameters().into_iter().map(|parameter| parameter.shape).collect();
        let method = |compression: Compression| {
            let bytes = bytes_of_step(compression, &lanes, &shapes);
            // To everyone's part, and back.
            let seconds = link.seconds(bytes) + link.latency.as_secs_f64();
            Method { compress: compression.to_string(), bytes: bytes as u64, seconds }
        };
        // From what changes a run least to what changes it most.
        let all = [
            Compression::None,
            Compression::Bits8,
            Compression::Bits4,
            Compression::PowerSgd(Compression::USUAL_RANK),
            Compression::TopK(Compression::USUAL_SHARE),
        ];
        let methods: Vec<Method> = all.into_iter().map(method).collect();
        let fits = methods.iter().find(|method| method.seconds <= SHARE * computing);
        let recommended = match fits {
            Some(method) if method.compress == "none" => None,
            Some(method) => Some(format!("--compress {}", method.compress)),
            None => {
                let meeting =
                    methods.iter().find(|method| method.compress == "4bit").map_or(0.0, |method| method.seconds);
                let steps = (meeting / (SHARE_OF_MEETINGS * computing)).ceil().max(2.0);
                Some(format!("--local-steps {steps:.0} --compress 4bit"))
            }
        };
        Traffic {
            link_bytes_per_second: link.bytes_per_second,
            link_seconds: link.latency.as_secs_f64(),
            methods,
            recommended,
        }
    }

    /// As people read it.
    pub fn text(&self, text: &mut String) {
        let megabits = self.link_bytes_per_second * 8e-6;
        line(
            text,
            format_args!(
                "\nexchanged a step by each rank, over a link of {megabits:.0} Mbit/s and {}",
                short_time(self.link_seconds)
            ),
        );
        for Method { compress, bytes, seconds } in &self.methods {
            line(text, format_args!("  --compress {compress:12} {:>9} {:>9}", size(*bytes), short_time(*seconds)));
        }
        match &self.recommended {
            None => line(text, format_args!("recommended: no compression")),
            Some(options) => line(text, format_args!("recommended: {options}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::train_options;
    use crate::resolve::resolve_for_planning;
    use std::time::Duration;

    #[test]
    fn the_slower_the_link_the_fewer_bytes_are_recommended() {
        let line = "--ranks 4 --lanes 4 --preset small --vocab-size 512";
        let matches = train_options().try_get_matches_from(line.split_whitespace()).unwrap();
        let config = resolve_for_planning(&matches).unwrap().config;
        let recommended = |bytes_per_second: f64| {
            let link = Link { latency: Duration::from_micros(50), bytes_per_second };
            Traffic::of(&config, link, 0.5).recommended
        };
        let plain = Traffic::of(&config, Link { latency: Duration::ZERO, bytes_per_second: 1.0 }, 0.5).methods;
        assert!(plain[0].bytes as f64 / plain[1].bytes as f64 > 3.7, "{plain:?}");
        assert_eq!(recommended(1e11), None);
        let at = |share: f64, method: usize| recommended(plain[method].bytes as f64 / (share * 0.05)).unwrap();
        assert_eq!(at(0.9, 1), "--compress 8bit");
        assert_eq!(at(0.9, 2), "--compress 4bit");
        assert!(recommended(1e3).unwrap().starts_with("--local-steps "));
    }
}
