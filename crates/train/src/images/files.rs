//! Which images there are: a folder for each class, or a table of paths and labels.

use super::decode::{self, Header};
use crate::data::Fingerprint;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What folders of training and of held-out images may be called, where both are in one.
const TRAIN: &str = "train";
const HELD_OUT: [&str; 4] = ["val", "valid", "validation", "test"];

/// An image in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Its file.
    pub path: PathBuf,
    /// Its class.
    pub class: usize,
    /// What its beginning says.
    pub header: Header,
}

/// An image that is stated, before its file is looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    path: PathBuf,
    label: String,
    /// Whether it is held out, where that is said.
    held_out: Option<bool>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The classes, in order.
    pub classes: Vec<String>,
    /// Images to train on, and held out.
    pub train: Vec<Example>,
    /// See `train`.
    pub held_out: Vec<Example>,
    /// Images that were left out, and why the first was.
    pub skipped: usize,
    /// See `skipped`.
    pub first_skipped: Option<String>,
}

/// The images that a folder or a table states.
pub fn stated(path: &Path) -> Result<Vec<Stated>> {
    let about = fs::metadata(path).map_err(Error::io("read", path))?;
    let stated = if about.is_dir() { in_folder(path)? } else { in_table(path)? };
    if stated.is_empty() {
        let problem = "no images: give a folder with a folder for each class, or a CSV file with a path and a label a line; \
             images end in .png, .jpg, .jpeg or .webp";
        return Err(Error::corpus(path, problem));
    }
    Ok(stated)
}

fn in_folder(folder: &Path) -> Result<Vec<Stated>> {
    let parts = subfolders(folder)?;
    let named = |name: &str| parts.iter().find(|part| part.file_name().is_some_and(|found| found == name));
    let held_out = HELD_OUT.iter().find_map(|name| named(name));
    if let (Some(train), Some(held_out), 2) = (named(TRAIN), held_out, parts.len()) {
        let mut all = in_classes(train, Some(false))?;
        all.extend(in_classes(held_out, Some(true))?);
        return Ok(all);
    }
    in_classes(folder, None)
}

fn in_classes(folder: &Path, held_out: Option<bool>) -> Result<Vec<Stated>> {
    let mut stated = vec![];
    for class in subfolders(folder)? {
        let Some(label) = class.file_name().and_then(|name| name.to_str()).map(str::to_string) else {
            let problem = "has a name that is not UTF-8, so no file can state the class; rename it";
            return Err(Error::corpus(&class, problem));
        };
        // A link to nothing is an image that is missing, and a pipe one that is none: both are found when they are looked at.
        let images = entries(&class)?.into_iter().filter(|path| decode::is_image(path) && !path.is_dir());
        stated.extend(images.map(|path| Stated { path, label: label.clone(), held_out }));
    }
    Ok(stated)
}

fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_shown = |path: &PathBuf| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir() && is_shown(path)).collect())
}

/// What a folder holds, in order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut entries = read().map_err(Error::io("read", folder))?;
    entries.sort();
    Ok(entries)
}

/// Lines of a path, a label, and if there is a third field `train` or `validation`. Paths are relative to the table.
fn in_table(table: &Path) -> Result<Vec<Stated>> {
    let text = fs::read_to_string(table).map_err(Error::io("read", table))?;
    // Spreadsheets mark UTF-8 at the beginning.
    let text = text.trim_start_matches('\u{feff}');
    let beside = table.parent().unwrap_or(Path::new(""));
    let mut stated = vec![];
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem: &str| Error::corpus(table, format!("line {}: {problem}", number + 1));
        let fields = fields(line).map_err(|problem| wrong(&problem))?;
        if number == 0 && fields.len() >= 2 && is_title(&fields[0], beside) {
            continue;
        }
        let [path, label, rest @ ..] = &fields[..] else {
            return Err(wrong("has no label; give a path and a label, with a comma between"));
        };
        if label.is_empty() {
            return Err(wrong("has an empty label; give a path and a label, with a comma between"));
        }
        let held_out = match rest {
            [] => None,
            [part] if part == TRAIN => Some(false),
            [part] if HELD_OUT.contains(&&part[..]) => Some(true),
            [part] => return Err(wrong(&format!("{part:?} is neither train nor validation"))),
            _ => return Err(wrong("has more than three fields; quote those with commas")),
        };
        stated.push(Stated { path: beside.join(path), label: label.clone(), held_out });
    }
    Ok(stated)
}

/// Whether the first field of a table names its column, and no file.
fn is_title(field: &str, beside: &Path) -> bool {
    Path::new(field).extension().is_none() && !beside.join(field).exists()
}

/// The fields of a line, quoted or not.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let (mut fields, mut rest) = (vec![], line.trim_end_matches('\r'));
    loop {
        let field = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let field = rest[..end].trim().to_string();
                rest = &rest[end..];
                field
            }
            Some(quoted) => {
                let mut field = String::new();
                let mut after = quoted;
                loop {
                    let end = after.find('"').ok_or("a quote has no end")?;
                    field += &after[..end];
                    after = &after[end + 1..];
                    match after.strip_prefix('"') {
                        Some(more) => {
                            field.push('"');
                            after = more;
                        }
                        None => break,
                    }
                }
                rest = after;
                field
            }
        };
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.is_empty() => return Ok(fields),
            None => return Err("something follows a quoted field; put a comma between".to_string()),
        }
    }
}

/// Looks at the beginning of each file, and holds some images of each class out unless it is stated which. Classes are in the
/// order of their names. `looked` is told how many files were looked at.
pub fn found(
    path: &Path,
    stated: Vec<Stated>,
    share: f64,
    skips_broken: bool,
    looked: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Found> {
    let mut found = Found::default();
    let mut by_class: BTreeMap<String, Vec<(Stated, Header)>> = BTreeMap::new();
    for (number, stated) in stated.into_iter().enumerate() {
        looked(number as u64)?;
        match decode::header(&stated.path) {
            Ok(header) => by_class.entry(stated.label.clone()).or_default().push((stated, header)),
            Err(error) if skips_broken => {
                found.skipped += 1;
                found.first_skipped.get_or_insert_with(|| error.to_string());
            }
            Err(error @ Error::Io { .. }) => {
                return Err(Error::corpus(
                    path,
                    format!("{error}; bring it back, or leave such out by `settings.skip_broken`"),
                ));
            }
            Err(error) => return Err(error),
        }
    }
    for (class, (label, images)) in by_class.into_iter().enumerate() {
        found.classes.push(label);
        for (is_held_out, path, header) in shared_out(images, share) {
            let example = Example { path, class, header };
            if is_held_out { found.held_out.push(example) } else { found.train.push(example) }
        }
    }
    match &found.classes[..] {
        [] => Err(Error::corpus(path, format!("none of its {} images can be read", found.skipped))),
        [only] => {
            let problem = format!(
                "all images are of one class, {only:?}; a model tells at least two apart: give a folder for each class"
            );
            Err(Error::corpus(path, problem))
        }
        _ if found.train.is_empty() => Err(Error::corpus(path, "no images to train on: all are held out")),
        _ => Ok(found),
    }
}

/// Which images of a class are held out: those that are stated, or a share, by a number made of the name of each, so that
/// others that come to them change little. One that is stated several times is held out whole, or trained on.
fn shared_out(images: Vec<(Stated, Header)>, share: f64) -> Vec<(bool, PathBuf, Header)> {
    let mut open: BTreeMap<(u64, &Path), Vec<usize>> = BTreeMap::new();
    for (at, (stated, _)) in images.iter().enumerate().filter(|(_, (stated, _))| stated.held_out.is_none()) {
        let name = stated.path.file_name().unwrap_or_default();
        let number = Fingerprint::new().bytes(name.as_encoded_bytes()).value();
        open.entry((number, &stated.path)).or_default().push(at);
    }
    let count = open.len();
    let wanted = ((count as f64 * share).round() as usize).max(usize::from(share > 0.0 && count > 1));
    let mut held_out: Vec<bool> = images.iter().map(|(stated, _)| stated.held_out == Some(true)).collect();
    open.into_values().take(wanted.min(count.saturating_sub(1))).flatten().for_each(|at| held_out[at] = true);
    images.into_iter().zip(held_out).map(|((stated, header), held_out)| (held_out, stated.path, header)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_apart() {
        let said = |line: &str| fields(line).unwrap().join("|");
        assert_eq!(said("a.png, cat"), "a.png|cat");
        assert_eq!(said("\"a, b.png\",\"the \"\"cat\"\"\",train\r"), "a, b.png|the \"cat\"|train");
        assert_eq!(said("a.png,"), "a.png|");
        assert!(fields("\"a.png,cat").is_err() && fields("\"a\"b,c").is_err());
    }

    #[test]
    fn a_title_names_columns_and_no_file() {
        let beside = std::env::temp_dir();
        let is_title = |field: &str| is_title(field, &beside);
        assert!(is_title("path") && is_title("file name") && is_title("\"image\""));
        assert!(!is_title("a.png") && !is_title("photos/a.gif") && !is_title("."));
    }

    #[test]
    fn a_share_of_each_class_is_held_out_and_one_image_stays() {
        let header = Header { size: [1, 1], bytes: 3, besides: 0 };
        let images = |count: usize, held_out: Option<bool>| -> Vec<(Stated, Header)> {
            let stated = |at: usize| Stated { path: format!("{at}.png").into(), label: "a".into(), held_out };
            (0..count).map(|at| (stated(at), header)).collect()
        };
        let held = |count: usize, share: f64, stated: Option<bool>| {
            shared_out(images(count, stated), share).iter().filter(|(held_out, ..)| *held_out).count()
        };
        assert_eq!((held(100, 0.1, None), held(2, 0.1, None), held(1, 0.9, None), held(5, 0.0, None)), (10, 1, 0, 0));
        assert_eq!((held(4, 0.5, Some(true)), held(4, 0.5, Some(false)), held(3, 0.99, None)), (4, 0, 2));
        // What is stated twice is on one side.
        let twice: Vec<_> = images(5, None).into_iter().chain(images(5, None)).collect();
        let shared = shared_out(twice, 0.5);
        assert_eq!(shared.iter().filter(|(held_out, ..)| *held_out).count(), 6);
        assert!((0..5).all(|at| shared[at].0 == shared[at + 5].0), "{shared:?}");
    }
}
