//! What a trained model says of images.

use super::decode;
use super::view::{Lines, View};
use super::{Classifier, IMAGE};
use crate::export;
use crate::memory::guard::{self, Doing};
use crate::parameters::Parameters;
use crate::step::Inputs;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::{Routine, Trace};
use std::path::{Path, PathBuf};

/// What a model says of an image: classes and their probabilities, the likeliest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The image.
    pub path: PathBuf,
    /// Classes and their probabilities.
    pub classes: Vec<(String, f32)>,
}

/// Says of each image which classes are likeliest, by the model of a folder. An image that cannot be read is an error, which
/// goes to `hear` like answers do: it says whether to go on.
pub fn classify(
    folder: &Path,
    images: &[PathBuf],
    count: usize,
    backend: &dyn Backend,
    hear: &mut dyn FnMut(Result<Answer>) -> Result<()>,
) -> Result<()> {
    let (labelled, layout) = export::read_image_config(folder)?;
    let (model, size) = (&labelled.model, labelled.model.size);
    let trace = Trace::new();
    let parameters = Parameters::new(&trace);
    let logits = Classifier::logits(model, &parameters, &Inputs::new(&trace, 1));
    let routine = Routine::new("classify").output("probabilities", &logits.softmax(-1));
    let mut program = trace.compile(backend, &[routine])?;
    export::read_image_weights(folder, model, layout, true, &mut program)?;
    guard::doing(Doing::Evaluating);
    let (mut bytes, mut lines, mut pixels) = (vec![], Lines::default(), vec![0; size[0] * size[1]]);
    for path in images {
        let shown = decode::decode(path, &mut bytes).map(|image| {
            let view = View::framed(image.size, size, &labelled.framing);
            view.show(image.size, |row, column| image.at(row, column), (size, &mut pixels), &mut lines);
        });
        if let Err(error) = shown {
            hear(Err(error))?;
            continue;
        }
        program.write(IMAGE, &pixels)?;
        program.run("classify")?;
        let probabilities = program.read("probabilities")?.to_vec::<f32>()?;
        if probabilities.iter().any(|probability| !probability.is_finite()) {
            let image = path.display();
            return Err(Error::Diverged(format!(
                "what the model says of {image} is no number: its numbers grow beyond f32; use one from before it diverged"
            )));
        }
        let mut classes: Vec<(String, f32)> = labelled.labels.iter().cloned().zip(probabilities).collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        classes.truncate(count);
        hear(Ok(Answer { path: path.clone(), classes }))?;
    }
    Ok(())
}
