//! The built-in corpus: short, simple stories, made from a grammar of our own. The same seed tells the same stories.

mod grammar;
mod plots;

use super::{Fingerprint, mix};
use grammar::{Character, HELPERS, HEROES, OPENINGS};
use plots::{PLOTS, Plot};

/// A teller of stories: each is a function of the seed and its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stories {
    seed: u32,
}

impl Stories {
    /// A sensible number of stories for a small model: about 2 MB of text.
    pub const DEFAULT_COUNT: u64 = 6_000;

    /// The teller of this seed.
    pub fn new(seed: u32) -> Stories {
        Stories { seed }
    }

    /// The first stories, each a paragraph that ends its line.
    pub fn documents(self, count: u64) -> impl Iterator<Item = String> {
        (0..count).map(move |number| self.story(number))
    }

    /// A number that changes when the stories do.
    pub fn fingerprint(self) -> Fingerprint {
        self.documents(50).fold(Fingerprint::new(), |print, story| print.bytes(story.as_bytes()))
    }

    fn story(self, number: u64) -> String {
        let mut dice = Dice(mix(number ^ (u64::from(self.seed) << 32)));
        let plot = dice.pick(PLOTS);
        let words = Words::choose(&plot, &mut dice);
        let mut text = String::new();
        let opening = std::iter::once(dice.pick(OPENINGS));
        for template in opening.chain(plot.sentences.iter().copied()) {
            words.expand(template, &mut dice, &mut text);
            text.push(' ');
        }
        tidy(&text)
    }
}

/// Pseudo-random choices.
struct Dice(u64);

impl Dice {
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = mix(self.0);
        choices[(self.0 % choices.len() as u64) as usize]
    }
}

/// The words that a story keeps from its first sentence to its last, by the names of their slots.
struct Words(Vec<(&'static str, &'static str)>);

impl Words {
    fn choose(plot: &Plot, dice: &mut Dice) -> Words {
        let hero = dice.pick(HEROES);
        let mut words = Words(Vec::new());
        words.add_hero(hero);
        let friends: Vec<&Character> = HEROES.iter().filter(|friend| friend.name != hero.name).collect();
        let friend = dice.pick(&friends);
        words.0.extend([("friend", friend.name), ("friend full", friend.full)]);
        words.0.push(("helper", dice.pick(HELPERS)));
        for choice in plot.choices.iter().chain(grammar::CHOICES) {
            words.0.extend(choice.slots.iter().copied().zip(dice.pick(choice.rows).iter().copied()));
        }
        words
    }

    fn add_hero(&mut self, hero: Character) {
        let Character { name, kind, full, pronouns: [he, him, his] } = hero;
        self.0.extend([("hero", name), ("hero full", full), ("kind", kind), ("he", he), ("him", him), ("his", his)]);
    }

    fn word(&self, slot: &str) -> &'static str {
        let found = self.0.iter().find(|(name, _)| *name == slot);
        found.map_or_else(|| panic!("the grammar has no word for {{{slot}}}"), |(_, word)| word)
    }

    /// Writes a template: `{slot}` is a word of the story, `[one|another]` one of several templates.
    fn expand(&self, template: &str, dice: &mut Dice, text: &mut String) {
        let mut rest = template;
        while let Some(start) = rest.find(['{', '[']) {
            text.push_str(&rest[..start]);
            let (inside, after) = bracketed(&rest[start..]);
            match rest.as_bytes()[start] {
                b'{' => text.push_str(self.word(inside)),
                _ => self.expand(choose_alternative(inside, dice), dice, text),
            }
            rest = after;
        }
        text.push_str(rest);
    }
}

/// What is inside the bracket that begins the template, and what comes after it.
fn bracketed(template: &str) -> (&str, &str) {
    let mut depth = 0;
    for (index, character) in template.char_indices() {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&template[1..index], &template[index + 1..]);
        }
    }
    panic!("a bracket of the grammar is not closed: {template}")
}

/// One of the parts between the bars that are not inside brackets.
fn choose_alternative<'a>(inside: &'a str, dice: &mut Dice) -> &'a str {
    let mut depth = 0;
    let alternatives: Vec<&str> = inside
        .split(|character| {
            match character {
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                _ => {}
            }
            character == '|' && depth == 0
        })
        .collect();
    dice.pick(&alternatives)
}

/// Single spaces, a capital at the start of each sentence, "an" before a vowel, and a line end.
fn tidy(text: &str) -> String {
    let mut tidied = String::with_capacity(text.len());
    let mut starts_sentence = true;
    let words: Vec<&str> = text.split_whitespace().collect();
    for (index, word) in words.iter().enumerate() {
        let following = words.get(index + 1).and_then(|word| word.chars().next());
        let needs_n = matches!(*word, "a" | "A") && following.is_some_and(|letter| "aeiou".contains(letter));
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if starts_sentence => tidied.push(first.to_ascii_uppercase()),
            Some(first) => tidied.push(first),
            None => {}
        }
        tidied.push_str(letters.as_str());
        tidied.push_str(if needs_n { "n " } else { " " });
        starts_sentence = word.trim_end_matches('"').ends_with(['.', '!', '?']) && !is_said(&words, index);
    }
    tidied.pop();
    tidied.push('\n');
    tidied
}

/// Whether a word ends what is said, and the sentence goes on: "Look!" said Tom.
fn is_said(words: &[&str], index: usize) -> bool {
    let goes_on = |word: &&str| ["said", "asked", "called"].contains(&word.trim_end_matches('.'));
    words[index].ends_with('"')
        && (words.get(index + 1).is_some_and(goes_on) || words.get(index + 2).is_some_and(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_same_seed_tells_the_same_stories() {
        let stories = |seed: u32| Stories::new(seed).documents(100).collect::<Vec<_>>();
        assert_eq!(stories(1), stories(1));
        assert_ne!(stories(1), stories(2));
        assert_eq!(Stories::new(1).fingerprint(), Stories::new(1).fingerprint());
    }

    #[test]
    fn stories_are_short_plain_and_whole() {
        for story in Stories::new(7).documents(3000) {
            let sentences = story.matches(['.', '!', '?']).count();
            assert!((5..=15).contains(&sentences), "{sentences} sentences: {story}");
            let plain = |letter: char| letter.is_ascii_alphabetic() || " .,!?'\"\n".contains(letter);
            assert!(story.chars().all(plain), "{story}");
            assert!(story.starts_with(|first: char| first.is_ascii_uppercase()), "{story}");
            assert!(story.ends_with(".\n") || story.ends_with("!\n") || story.ends_with("\"\n"), "{story}");
            assert_eq!(story.matches('"').count() % 2, 0, "{story}");
            for flaw in ["  ", " .", " ,", "..", " a a", " a e", " a i", " a o", " a u", "!.", "?."] {
                assert!(!story.contains(flaw), "{flaw:?} in {story}");
            }
        }
    }

    #[test]
    fn pronouns_are_those_of_the_characters() {
        for number in 0..2000 {
            let story = Stories::new(3).story(number);
            let words: HashSet<&str> = story.split(|letter: char| !letter.is_ascii_alphabetic()).collect();
            let any = |pronoun| HEROES.iter().any(|hero| hero.pronouns[0] == pronoun && words.contains(hero.name));
            let (has_boy, has_girl) = (any("he"), any("she"));
            let says = |pronouns: [&str; 6]| pronouns.iter().any(|pronoun| words.contains(pronoun));
            assert!(has_boy || !says(["he", "He", "him", "his", "His", "Him"]), "{story}");
            assert!(has_girl || !says(["she", "She", "her", "Her", "hers", "Hers"]), "{story}");
        }
    }

    #[test]
    fn there_is_variety_and_about_two_megabytes() {
        let stories: Vec<String> = Stories::new(1).documents(Stories::DEFAULT_COUNT).collect();
        let bytes: usize = stories.iter().map(String::len).sum();
        assert!((1_700_000..2_500_000).contains(&bytes), "{bytes} bytes");
        let different: HashSet<&String> = stories.iter().collect();
        assert_eq!(different.len(), stories.len());
    }
}
