//! A file of JSON objects, one a line: each a document, in pieces when its text is long.

use super::json::Json;
use super::pieces::{PIECE_BYTES, cut_piece};
use super::{Document, SourceFile, guess_field};
use crate::{Error, Result};

/// What is kept of a field's name, and how many names: to find the text, and to tell what there is.
const NAME_BYTES: usize = 256;
const NAMES_MAX: usize = 1000;
/// Names that a message shows.
const NAMES_SHOWN: usize = 20;

/// The text of each record.
pub struct Records {
    json: Json,
    /// The field of the text.
    field: String,
    /// Whether the text of the record is being read, and what of it was not given yet.
    in_text: bool,
    text: String,
    /// Whether the record's text was found, and the names of other fields.
    found: bool,
    others: Vec<String>,
}

impl Records {
    pub fn open(file: &SourceFile, text_field: Option<&str>) -> Result<Records> {
        let field = match text_field {
            Some(field) => field.to_string(),
            None => guess(Json::open(file)?)?,
        };
        let (text, others) = (String::new(), vec![]);
        Ok(Records { json: Json::open(file)?, field, in_text: false, text, found: false, others })
    }

    fn document(&mut self) -> Result<Option<Document>> {
        if !self.in_text {
            if !self.json.begin_object()? {
                return Ok(None);
            }
            self.found = false;
            self.others.clear();
            self.in_text = self.seek_text()?;
        }
        if self.in_text && !self.json.string_part(&mut self.text, PIECE_BYTES)? {
            return Ok(Some(cut_piece(&mut self.text)));
        }
        if self.in_text {
            self.in_text = self.seek_text()?;
        }
        match self.found {
            true => Ok(Some(Document::whole(std::mem::take(&mut self.text)))),
            false => Err(self.no_field()),
        }
    }

    /// Goes into the text of the record, if it comes; false at the end of the record. A second text would have to
    /// take the place of one that was given already, so it is refused.
    fn seek_text(&mut self) -> Result<bool> {
        let mut name = String::new();
        while self.json.next_member(&mut name, NAME_BYTES)? {
            if name != self.field {
                self.json.skip_value()?;
                note(&mut self.others, name.clone());
                continue;
            }
            if self.found {
                return Err(self
                    .json
                    .problem(format!("the field {name:?} is there twice: correct or remove the line")));
            }
            self.found = true;
            match self.json.value_start()? {
                Some(b'"') => {
                    self.json.begin_string();
                    return Ok(true);
                }
                Some(b'n') => self.json.literal("null")?,
                _ => {
                    let problem = format!("the field {name:?} is not text: name another `settings.text_field`");
                    return Err(self.json.problem(problem));
                }
            }
        }
        Ok(false)
    }

    fn no_field(&self) -> Error {
        let (field, fields) = (&self.field, shown(&self.others));
        self.json.problem(format!(
            "there is no field {field:?}: name the text's with `settings.text_field` (there are {fields})"
        ))
    }
}

impl Iterator for Records {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.document().transpose()
    }
}

/// The field that is the text of the first record, by its name or because no other is text.
fn guess(mut json: Json) -> Result<String> {
    if !json.begin_object()? {
        return Ok(String::new());
    }
    let (mut name, mut texts, mut all) = (String::new(), vec![], vec![]);
    while json.next_member(&mut name, NAME_BYTES)? {
        if json.value_start()? == Some(b'"') {
            note(&mut texts, name.clone());
        }
        note(&mut all, name.clone());
        json.skip_value()?;
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    guess_field(&texts).map(str::to_string).ok_or_else(|| {
        let fields = shown(&all);
        json.problem(format!(
            "no telling which field is the text: name it with `settings.text_field` (there are {fields})"
        ))
    })
}

/// Keeps a name, if there are not too many.
fn note(names: &mut Vec<String>, name: String) {
    if names.len() < NAMES_MAX {
        names.push(name);
    }
}

/// Names for a message, in order.
fn shown(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    sorted.dedup();
    let first: Vec<String> = sorted.iter().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
    let more = if sorted.len() > NAMES_SHOWN { ", ..." } else { "" };
    first.join(", ") + more
}
