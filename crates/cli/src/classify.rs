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
    // Names of files need not be text, and JSON is.
    format!("{}\n", json!({"image": answer.path.to_string_lossy(), "classes": classes}))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_name_that_is_no_text_is_told_as_far_as_it_is() {
        let path = std::ffi::OsStr::from_bytes(b"a\xff.png").into();
        let told = object(&Answer { path, classes: vec![("cat".into(), 1.0)] });
        assert!(told.contains("a\u{fffd}.png") && told.contains("cat"), "{told}");
    }
}
