//! `gradus classify`.

use crate::args::ClassifyArgs;
use crate::in_options::in_options;
use crate::{defaults, folders, print};
use gradus_train::images::{Answer, classify};
use gradus_train::{Error, Result, device};
use serde_json::json;

/// Says which classes of a model each image shows likeliest.
pub fn run(args: &ClassifyArgs) -> Result<()> {
    let folder = folders::model(&args.folder)?;
    let backend = device::backend(args.device, args.threads.unwrap_or_else(defaults::threads))?;
    let mut broken = 0;
    classify(&folder, &args.images, args.top, &*backend, &mut |answer| match answer {
        Ok(answer) => print::text(if args.json { object(&answer) } else { line(&answer) }),
        Err(error) if args.skip_broken => {
            broken += 1;
            print::note(format!("warning: {}", in_options(&error.to_string())));
            Ok(())
        }
        Err(error) => Err(error),
    })?;
    match broken {
        0 => Ok(()),
        all if all == args.images.len() => Err(Error::Config("none of the images can be read".to_string())),
        some => {
            print::note(format!("{some} of {} images were left out", args.images.len()));
            Ok(())
        }
    }
}

fn line(answer: &Answer) -> String {
    let classes: Vec<String> =
        answer.classes.iter().map(|(name, share)| format!("{name} {:.1} %", 100.0 * share)).collect();
    format!("{}: {}\n", answer.path.display(), classes.join(", "))
}

fn object(answer: &Answer) -> String {
    let classes: Vec<_> =
        answer.classes.iter().map(|(name, share)| json!({"class": name, "probability": share})).collect();
    format!("{}\n", json!({"image": answer.path, "classes": classes}))
}
