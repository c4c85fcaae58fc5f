//! From a corpus to token files: read as a stream, tokenized once, and used again as long as nothing has changed.

use super::sources::no_text;
use super::{Corpus, Document, Fingerprint, TokenFile, TokenWriter};
use crate::config::Validation;
use crate::files::atomic;
use crate::{Error, Result};
use std::path::Path;

/// How text becomes tokens.
#[derive(Clone, Copy)]
pub struct Encoding<'a> {
    /// The tokens of a text.
    pub encode: &'a dyn Fn(&str) -> Result<Vec<u32>>,
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The tokens that each document begins with.
    pub starts_with: &'a [u32],
    /// The tokens that each document ends with.
    pub ends_with: &'a [u32],
    /// A number that changes when the tokenizer does.
    pub fingerprint: u64,
}

/// A corpus that is ready to train on.
#[derive(Debug)]
pub struct Prepared {
    /// What is trained on.
    pub train: TokenFile,
    /// What is held out, if anything.
    pub validation: Option<TokenFile>,
    /// Bytes of text that are trained on.
    pub train_bytes: u64,
    /// Bytes of text that are held out.
    pub validation_bytes: u64,
}

/// Called with the bytes of text done and, when they are counted, of all text; an error ends the work.
pub type Progress<'a> = &'a mut dyn FnMut(u64, Option<u64>) -> Result<()>;

/// Tokenizes the corpus into `train.tokens` and `validation.tokens` in `folder`, unless files of the same corpus and
/// tokenizer are there. Either must hold a `sequence` and one token more.
pub fn prepare(
    corpus: &Corpus,
    encoding: &Encoding,
    validation: &Validation,
    sequence: usize,
    folder: &Path,
    progress: Progress,
) -> Result<Prepared> {
    let held_out = HeldOut::open(validation, corpus.text_field())?;
    let preparation = Preparation { corpus, encoding, held_out, sequence, folder };
    let fingerprint = preparation.fingerprint();
    match reuse(folder, fingerprint.value(), !matches!(preparation.held_out, HeldOut::Nothing)) {
        Some(prepared) => {
            preparation.check_lengths(prepared.train.len(), prepared.validation.as_ref().map(TokenFile::len))?;
            Ok(prepared)
        }
        None => preparation.tokenize(fingerprint, progress),
    }
}

/// The token files in `folder` if they are whole and have this fingerprint: those of an earlier run, for which its
/// corpus need not be there.
pub fn reuse(folder: &Path, fingerprint: u64, holds_out: bool) -> Option<Prepared> {
    let open = |name| TokenFile::open(&folder.join(name)).ok().filter(|file| file.fingerprint() == fingerprint);
    let train = open(TRAIN)?;
    let validation = if holds_out { Some(open(VALIDATION)?) } else { None };
    Some(Prepared::new(train, validation))
}

impl Prepared {
    fn new(train: TokenFile, validation: Option<TokenFile>) -> Prepared {
        let validation_bytes = validation.as_ref().map_or(0, TokenFile::text_bytes);
        Prepared { train_bytes: train.text_bytes(), validation_bytes, train, validation }
    }
}

enum HeldOut {
    Nothing,
    Share(f64),
    Corpus(Corpus),
}

impl HeldOut {
    fn open(validation: &Validation, text_field: Option<&str>) -> Result<HeldOut> {
        match validation {
            Validation::File(path) => Ok(HeldOut::Corpus(Corpus::open(std::slice::from_ref(path), text_field)?)),
            Validation::Fraction(share) if *share == 0.0 => Ok(HeldOut::Nothing),
            Validation::Fraction(share) if *share > 0.0 && *share < 1.0 => Ok(HeldOut::Share(*share)),
            Validation::Fraction(share) => Err(Error::Config(format!(
                "`settings.validation` {share}: give a share of at least 0 and below 1, or a file"
            ))),
        }
    }
}

struct Preparation<'a> {
    corpus: &'a Corpus,
    encoding: &'a Encoding<'a>,
    held_out: HeldOut,
    sequence: usize,
    folder: &'a Path,
}

impl<'a> Preparation<'a> {
    /// Of all that decides what is in the files.
    fn fingerprint(&self) -> Fingerprint {
        let (kind, held_out) = match &self.held_out {
            HeldOut::Nothing => (0, 0),
            HeldOut::Share(share) => (1, share.to_bits()),
            HeldOut::Corpus(corpus) => (2, corpus.fingerprint().value()),
        };
        let (last, others) = match self.encoding.ends_with.split_last() {
            Some((last, others)) => (u64::from(*last), others),
            None => (u64::MAX, &[][..]),
        };
        let numbers = [self.encoding.vocabulary as u64, last, self.encoding.fingerprint, kind, held_out];
        let around = self.encoding.starts_with.iter().chain(others).map(|id| u64::from(*id));
        numbers.into_iter().chain(around).fold(self.corpus.fingerprint(), Fingerprint::number)
    }

    fn tokenize(&self, fingerprint: Fingerprint, progress: Progress) -> Result<Prepared> {
        let corpus_bytes = count_bytes(self.corpus, 0, progress)?;
        let all_bytes = match &self.held_out {
            HeldOut::Corpus(held_out) => corpus_bytes + count_bytes(held_out, corpus_bytes, progress)?,
            _ => corpus_bytes,
        };
        std::fs::create_dir_all(self.folder).map_err(atomic::failed("make", self.folder))?;
        let section = |name| Section::create(&self.folder.join(name), self.encoding, fingerprint);
        let mut train = section(TRAIN)?;
        let mut validation = match self.held_out {
            HeldOut::Nothing => None,
            _ => Some(section(VALIDATION)?),
        };
        let mut report = |done| progress(done, Some(all_bytes));
        let share = if let HeldOut::Share(share) = self.held_out { share } else { 0.0 };
        divide(self.corpus, Cut::new(corpus_bytes, share), &mut train, validation.as_mut(), &mut report)?;
        if let (HeldOut::Corpus(held_out), Some(validation)) = (&self.held_out, &mut validation) {
            let all = Cut::new(all_bytes, 0.0);
            divide(held_out, all, validation, None, &mut |done| report(corpus_bytes + done))?;
        }
        self.check_lengths(train.writer.len(), validation.as_ref().map(|section| section.writer.len()))?;
        // The training file is named last, and is looked at first: with it, both are there.
        let validation = validation.map(Section::finish).transpose()?;
        Ok(Prepared::new(train.finish()?, validation))
    }

    fn check_lengths(&self, train: u64, validation: Option<u64>) -> Result<()> {
        let (sequence, needed) = (self.sequence, self.sequence as u64 + 1);
        if train < needed {
            let problem = format!("{train} tokens to train on, where one sequence of {sequence} needs {needed}");
            let advice = "add text, or choose a smaller `settings.sequence`";
            return Err(Error::corpus(self.corpus.name(), format!("{problem}: {advice}")));
        }
        match (validation, &self.held_out) {
            (Some(tokens), held_out) if tokens < needed => {
                let problem = format!("{tokens} tokens held out, where one sequence of {sequence} needs {needed}");
                let (name, advice) = match held_out {
                    HeldOut::Corpus(corpus) => {
                        (corpus.name(), "name a longer file, or choose a smaller `settings.sequence`")
                    }
                    _ => (
                        self.corpus.name(),
                        "hold out more, add text, or hold out nothing with `settings.validation` 0",
                    ),
                };
                Err(Error::corpus(name, format!("{problem}: {advice}")))
            }
            _ => Ok(()),
        }
    }
}

const TRAIN: &str = "train.tokens";
const VALIDATION: &str = "validation.tokens";

/// Reads the corpus once, so that its size is known and what is wrong with it is told before anything is written.
/// Reading costs little beside tokenizing.
fn count_bytes(corpus: &Corpus, before: u64, progress: Progress) -> Result<u64> {
    let mut bytes = 0;
    for document in corpus.documents() {
        bytes += document?.text.len() as u64;
        progress(before + bytes, None)?;
    }
    if bytes == 0 { Err(no_text(corpus.name())) } else { Ok(bytes) }
}

/// Tokenizes a corpus: what is before the cut into one section, the rest into the other.
fn divide(
    corpus: &Corpus,
    mut cut: Cut,
    before: &mut Section,
    mut after: Option<&mut Section>,
    report: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    for document in corpus.documents() {
        let Document { text, continues } = document?;
        let (left, right) = text.split_at(cut.place(&text, continues));
        if !left.is_empty() {
            before.piece(left, continues || !right.is_empty())?;
        }
        if let Some(after) = after.as_deref_mut().filter(|_| !right.is_empty()) {
            after.piece(right, continues)?;
        }
        report(cut.position)?;
    }
    Ok(())
}

/// Where what is held out begins: at its share of the text's bytes. A document that lies there stays whole, before
/// the cut, unless it is large beside what is held out: then it is cut at a character.
struct Cut {
    /// The byte at which the cut is due.
    at: u64,
    held_out: u64,
    /// Bytes of text seen, and where the document that is being read began.
    position: u64,
    document_start: u64,
    in_document: bool,
    done: bool,
}

impl Cut {
    fn new(bytes: u64, share: f64) -> Cut {
        let at = ((1.0 - share) * bytes as f64) as u64;
        Cut { at, held_out: bytes - at, position: 0, document_start: 0, in_document: false, done: false }
    }

    /// Where the next piece of text is cut: at its end, if it lies before the cut; at 0, if after.
    fn place(&mut self, text: &str, continues: bool) -> usize {
        let (start, starts_document) = (self.position, !self.in_document);
        if starts_document {
            self.document_start = start;
        }
        self.position += text.len() as u64;
        self.in_document = continues;
        if self.done {
            return 0;
        }
        if self.position <= self.at {
            return text.len();
        }
        let is_large = self.position - self.document_start > self.held_out / 2;
        let between_documents = starts_document && self.at <= start;
        if !is_large && !between_documents {
            return text.len();
        }
        self.done = true;
        text.floor_char_boundary(self.at.saturating_sub(start) as usize)
    }
}

/// One token file being written.
struct Section<'a> {
    writer: TokenWriter,
    encoding: &'a Encoding<'a>,
    text_bytes: u64,
    in_document: bool,
    /// Whether the last text needs something between it and the next.
    open_line: bool,
}

impl<'a> Section<'a> {
    fn create(path: &Path, encoding: &'a Encoding<'a>, fingerprint: Fingerprint) -> Result<Section<'a>> {
        let writer = TokenWriter::create(path, encoding.vocabulary, fingerprint)?;
        Ok(Section { writer, encoding, text_bytes: 0, in_document: false, open_line: false })
    }

    fn piece(&mut self, text: &str, continues: bool) -> Result<()> {
        if !self.in_document {
            self.separate()?;
            self.writer.start_document()?;
            self.writer.push(self.encoding.starts_with)?;
        }
        self.writer.push(&(self.encoding.encode)(text)?)?;
        self.text_bytes += text.len() as u64;
        self.in_document = continues;
        self.open_line = !text.ends_with('\n');
        if continues { Ok(()) } else { self.writer.push(self.encoding.ends_with) }
    }

    /// Without tokens around a text, documents are kept apart by line ends, if the vocabulary has them.
    fn separate(&mut self) -> Result<()> {
        let is_apart = !self.encoding.starts_with.is_empty() || !self.encoding.ends_with.is_empty();
        if is_apart || self.writer.len() == 0 || !self.open_line {
            return Ok(());
        }
        (self.encoding.encode)("\n").map_or(Ok(()), |line_end| self.writer.push(&line_end))
    }

    fn finish(self) -> Result<TokenFile> {
        self.writer.finish(self.text_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::super::validation_windows;
    use super::*;
    use std::cell::Cell;
    use std::path::PathBuf;

    const END: u32 = 256;

    /// Prepares with a byte a token, and tells how many texts were tokenized.
    fn bytes(folder: &Folder, corpus: &Corpus, validation: &Validation, end: Option<u32>) -> (Result<Prepared>, usize) {
        let calls = Cell::new(0);
        let encode = |text: &str| {
            calls.set(calls.get() + 1);
            Ok(text.bytes().map(u32::from).collect())
        };
        let encoding =
            Encoding { encode: &encode, vocabulary: 257, starts_with: &[], ends_with: end.as_slice(), fingerprint: 1 };
        let out = folder.path().join("run");
        let prepared = prepare(corpus, &encoding, validation, 8, &out, &mut |_, _| Ok(()));
        (prepared, calls.get())
    }

    fn corpus(folder: &Folder, files: &[(&str, &str)]) -> Corpus {
        let paths: Vec<PathBuf> = files.iter().map(|(name, text)| folder.write(name, text)).collect();
        Corpus::open(&paths, None).unwrap()
    }

    fn text(file: &TokenFile) -> String {
        let mut tokens = vec![0; file.len() as usize];
        file.read(0, &mut tokens).unwrap();
        let bytes = tokens.iter().map(|&token| if token == END as i32 { b'#' } else { token as u8 }).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn starts(file: &TokenFile) -> Vec<u64> {
        (0..file.documents()).map(|document| file.document_start(document).unwrap()).collect()
    }

    fn parts(prepared: &Prepared) -> (String, String) {
        (text(&prepared.train), prepared.validation.as_ref().map_or(String::new(), text))
    }

    #[test]
    fn one_text_is_cut_at_its_share() {
        let folder = Folder::new("one-text");
        let whole: String = ('a'..='z').cycle().take(1003).collect();
        let corpus = corpus(&folder, &[("a.txt", &whole)]);
        let prepared = bytes(&folder, &corpus, &Validation::Fraction(0.1), None).0.unwrap();
        assert_eq!(parts(&prepared), (whole[..902].to_string(), whole[902..].to_string()));
        assert_eq!((prepared.train_bytes, prepared.validation_bytes), (902, 101));
        assert_eq!(validation_windows(prepared.validation.as_ref().unwrap(), 8).collect::<Vec<_>>().len(), 12);
    }

    #[test]
    fn a_long_text_is_cut_at_its_share_and_a_character() {
        let folder = Folder::new("long-text");
        let whole = "ünï\n".repeat(600_000);
        let corpus = corpus(&folder, &[("a.txt", &whole)]);
        let prepared = bytes(&folder, &corpus, &Validation::Fraction(0.25), Some(END)).0.unwrap();
        let (train, validation) = parts(&prepared);
        assert_eq!(train, whole[..whole.floor_char_boundary(whole.len() / 4 * 3)]);
        assert_eq!(train + &validation, format!("{whole}#"));
        assert_eq!(starts(&prepared.validation.unwrap()), [0]);
    }

    #[test]
    fn several_documents_are_divided_between_documents() {
        let folder = Folder::new("several");
        let lines: String = (10..99).map(|number| format!("{{\"text\": \"document {number}\"}}\n")).collect();
        let corpus = corpus(&folder, &[("a.jsonl", &lines)]);
        let prepared = bytes(&folder, &corpus, &Validation::Fraction(0.1), Some(END)).0.unwrap();
        let (train, validation) = parts(&prepared);
        assert!(train.starts_with("document 10#document 11#") && train.ends_with("document 90#"), "{train}");
        assert!(validation.starts_with("document 91#") && validation.ends_with("document 98#"), "{validation}");
        assert_eq!(starts(&prepared.train)[..3], [0, 12, 24]);
        let prepared = bytes(&folder, &corpus, &Validation::Fraction(0.0), None).0.unwrap();
        assert!(text(&prepared.train).starts_with("document 10\ndocument 11\n") && prepared.validation.is_none());
    }

    #[test]
    fn another_file_is_held_out() {
        let folder = Folder::new("another");
        let other = folder.write("b.txt", "held out, all of it");
        let corpus = corpus(&folder, &[("a.txt", "all of this is trained on")]);
        let prepared = bytes(&folder, &corpus, &Validation::File(other), None).0.unwrap();
        assert_eq!(parts(&prepared), ("all of this is trained on".to_string(), "held out, all of it".to_string()));
    }

    #[test]
    fn a_second_run_uses_the_files_and_a_change_makes_them_again() {
        let folder = Folder::new("again");
        let corpus = corpus(&folder, &[("a.txt", &"some words ".repeat(100))]);
        let share = Validation::Fraction(0.1);
        let run = |validation: &Validation| bytes(&folder, &corpus, validation, None);
        let (first, calls) = run(&share);
        assert!(calls > 0);
        let (second, calls) = run(&share);
        assert_eq!((calls, parts(&first.unwrap())), (0, parts(&second.unwrap())));
        assert!(run(&Validation::Fraction(0.2)).1 > 0, "another share");
        folder.write("run/validation.tokens", "torn");
        let (repaired, calls) = run(&Validation::Fraction(0.2));
        assert!(calls > 0 && repaired.unwrap().validation_bytes == 220, "a torn file");
        assert_eq!(std::fs::read_dir(folder.path().join("run")).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn what_cannot_be_trained_on_is_told_and_nothing_is_written() {
        let folder = Folder::new("cannot");
        let problem = |corpus: &Corpus, validation: Validation| {
            let problem = bytes(&folder, corpus, &validation, None).0.unwrap_err().to_string();
            assert!(!folder.path().join("run/train.tokens").exists());
            problem
        };
        let short = corpus(&folder, &[("short.txt", "eight ch")]);
        let told = problem(&short, Validation::Fraction(0.0));
        assert!(told.contains("8 tokens to train on") && told.contains("needs 9"), "{told}");
        let few = corpus(&folder, &[("few.txt", "enough to train on, but not more")]);
        let told = problem(&few, Validation::Fraction(0.1));
        assert!(told.contains("4 tokens held out") && told.contains("`settings.validation` 0"), "{told}");
        assert!(problem(&few, Validation::Fraction(1.0)).contains("`settings.validation` 1"));
        let empty = corpus(&folder, &[("empty.jsonl", "{\"text\": \"\"}\n")]);
        assert!(problem(&empty, Validation::Fraction(0.0)).contains("no text"));
        let broken = corpus(&folder, &[("broken.jsonl", "{\"text\": \"enough to train on\"}\n{")]);
        assert!(problem(&broken, Validation::Fraction(0.0)).contains("line 2"));
    }

    #[test]
    fn the_stories_are_a_corpus() {
        let folder = Folder::new("stories");
        let corpus = Corpus::stories(1, 200);
        let (prepared, calls) = bytes(&folder, &corpus, &Validation::Fraction(0.1), Some(END));
        let prepared = prepared.unwrap();
        assert_eq!(calls, 200);
        assert_eq!(prepared.train.documents() + prepared.validation.unwrap().documents(), 200);
        assert_eq!(bytes(&folder, &corpus, &Validation::Fraction(0.1), Some(END)).1, 0);
    }
}
