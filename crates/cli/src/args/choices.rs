//! What the command line calls choices of the library.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use gradus_train::config::{ExportDtype, OptimizerKind, Precision, ScheduleKind, Sharding};
use gradus_train::export::Layout;
use gradus_train::models::{Family, PRESETS, vision};

pub(super) fn preset_names() -> PossibleValuesParser {
    PRESETS.iter().map(|preset| PossibleValue::new(preset.name).help(preset.about)).into()
}

pub(super) fn image_models() -> PossibleValuesParser {
    vision::NAMES.iter().map(|(name, about)| PossibleValue::new(name).help(about)).into()
}

/// Names of choices on the command line, each standing for one of the library's.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident for $choice:ident { $($variant:ident),* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, ValueEnum)]
        pub enum $name { $(#[allow(missing_docs)] $variant),* }

        impl From<$name> for $choice {
            fn from(name: $name) -> $choice {
                match name { $($name::$variant => $choice::$variant),* }
            }
        }
    )*};
}

choices! {
    /// Families of models.
    FamilyName for Family { Gpt2, Llama, Mistral, Qwen2, Qwen3 }
    /// Falls of the learning rate.
    ScheduleName for ScheduleKind { Cosine, Linear, Constant, Wsd }
    /// Optimizers.
    OptimizerName for OptimizerKind { Adamw, Sgd, Lion, Adafactor, Muon, Sophia, Soap }
    /// Element types.
    PrecisionName for Precision { F32, Bf16, F16, Tf32 }
    /// Element types of stored weights.
    ExportDtypeName for ExportDtype { F32, Bf16, F16 }
    /// Layouts of model folders.
    LayoutName for Layout { Timm, Transformers }
    /// What ranks have parts of.
    ShardName for Sharding { None, Optimizer, Gradients }
}
