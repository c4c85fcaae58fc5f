//! Words by number, in little memory: they lie side by side in one text, and a table of numbers finds them.

use std::hash::{DefaultHasher, Hasher};

/// A place of the table that no word has.
const FREE: u32 = u32::MAX;

/// Words, each of which has a number. A word costs its letters and some fifteen bytes. There is room for 4 GB of them.
#[derive(Default)]
pub struct WordTable {
    /// All words, one after the other.
    text: String,
    /// Where each word ends in the text; it begins where the one before it ends.
    ends: Vec<u32>,
    /// Numbers of words, each at the first free place from where its hash points; a power of two of them.
    places: Vec<u32>,
}

impl WordTable {
    /// The number of a word, if it has one.
    pub fn find(&self, word: &str) -> Option<usize> {
        let number = *self.places.get(self.place(word)?)?;
        (number != FREE).then_some(number as usize)
    }

    /// The number of a word; a new one gets the next.
    pub fn number(&mut self, word: &str) -> usize {
        // Half of the places are free, so that a free one is near.
        if 2 * self.ends.len() >= self.places.len() {
            self.grow();
        }
        let place = self.place(word).expect("there is a free place");
        if self.places[place] == FREE {
            self.places[place] = u32::try_from(self.ends.len()).expect("fewer words than bytes of text");
            self.text.push_str(word);
            self.ends.push(u32::try_from(self.text.len()).expect("less than 4 GB of words"));
        }
        self.places[place] as usize
    }

    /// The word of a number.
    pub fn word(&self, number: usize) -> &str {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.text[start as usize..self.ends[number] as usize]
    }

    /// How many words there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all words together.
    pub fn letters(&self) -> usize {
        self.text.len()
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>() + self.places.capacity() * size_of::<u32>()
    }

    /// The place of a word, or the free one where it belongs; none if there are no places.
    fn place(&self, word: &str) -> Option<usize> {
        let mut hasher = DefaultHasher::new();
        hasher.write(word.as_bytes());
        let mask = self.places.len().checked_sub(1)?;
        let mut place = hasher.finish() as usize & mask;
        while self.places[place] != FREE && self.word(self.places[place] as usize) != word {
            place = (place + 1) & mask;
        }
        Some(place)
    }

    fn grow(&mut self) {
        let count = (2 * self.places.len()).max(1 << 10);
        // The old places go first: what is in them follows from the words.
        self.places = vec![];
        self.places.resize(count, FREE);
        for number in 0..self.ends.len() {
            let place = self.place(self.word(number)).expect("there is a free place");
            self.places[place] = number as u32;
        }
    }
}
