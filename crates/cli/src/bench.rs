//! `gradus bench`.

use gradus_train::{Error, Result};

/// Says that it is not there yet.
pub fn run() -> Result<()> {
    Err(Error::Config(
        "gradus bench is not there yet; `gradus train` shows tokens a second and memory as it goes".into(),
    ))
}
