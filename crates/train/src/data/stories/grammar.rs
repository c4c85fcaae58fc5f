//! Who is in the stories, and how they begin.

/// Someone in a story.
#[derive(Clone, Copy)]
pub struct Character {
    pub name: &'static str,
    /// What they are, as in "a little girl".
    pub kind: &'static str,
    /// The name as it is first told: an animal's says what it is.
    pub full: &'static str,
    /// He, him, his, or as it is for her.
    pub pronouns: [&'static str; 3],
}

/// Words that are chosen together, one row for a story, and kept in it.
#[derive(Clone, Copy)]
pub struct Choice {
    pub slots: &'static [&'static str],
    pub rows: &'static [&'static [&'static str]],
}

const HE: [&str; 3] = ["he", "him", "his"];
const SHE: [&str; 3] = ["she", "her", "her"];

const fn boy(name: &'static str) -> Character {
    Character { name, kind: "boy", full: name, pronouns: HE }
}

const fn girl(name: &'static str) -> Character {
    Character { name, kind: "girl", full: name, pronouns: SHE }
}

const fn he(name: &'static str, kind: &'static str, full: &'static str) -> Character {
    Character { name, kind, full, pronouns: HE }
}

const fn she(name: &'static str, kind: &'static str, full: &'static str) -> Character {
    Character { name, kind, full, pronouns: SHE }
}

pub const HEROES: &[Character] = &[
    boy("Tom"),
    boy("Ben"),
    boy("Max"),
    boy("Sam"),
    boy("Leo"),
    boy("Tim"),
    boy("Jack"),
    boy("Finn"),
    girl("Lily"),
    girl("Mia"),
    girl("Anna"),
    girl("Sue"),
    girl("Rosie"),
    girl("Emma"),
    girl("Zoe"),
    girl("Kate"),
    he("Bruno", "bear", "Bruno the bear"),
    he("Hops", "rabbit", "Hops the rabbit"),
    he("Rusty", "dog", "Rusty the dog"),
    he("Dot", "duck", "Dot the duck"),
    she("Mimi", "cat", "Mimi the cat"),
    she("Pip", "mouse", "Pip the mouse"),
    she("Bella", "fox", "Bella the fox"),
    she("Nutty", "squirrel", "Nutty the squirrel"),
];

/// The hero's own; pronouns are kept for the hero.
pub const HELPERS: &[&str] = &["mom", "dad", "grandma", "grandpa", "aunt", "uncle"];

/// Words that any story may use.
pub const CHOICES: &[Choice] = &[
    Choice {
        slots: &["nature"],
        rows: &[&["little"], &["happy"], &["kind"], &["brave"], &["small"], &["clever"], &["shy"], &["funny"]],
    },
    Choice { slots: &["mood"], rows: &[&["nice"], &["curious"], &["good"], &["playful"], &["friendly"]] },
    Choice {
        slots: &["color"],
        rows: &[&["red"], &["blue"], &["green"], &["yellow"], &["pink"], &["white"], &["orange"], &["purple"]],
    },
    Choice {
        slots: &["place"],
        rows: &[
            &["the park"],
            &["the garden"],
            &["the river"],
            &["the lake"],
            &["the farm"],
            &["the beach"],
            &["the old barn"],
            &["the big hill"],
        ],
    },
    Choice {
        slots: &["time"],
        rows: &[
            &["one day"],
            &["one morning"],
            &["one sunny day"],
            &["one cold day"],
            &["one afternoon"],
            &["one windy day"],
        ],
    },
    Choice {
        slots: &["treat"],
        rows: &[
            &["a warm cookie"],
            &["a big cake"],
            &["a sweet apple"],
            &["a cup of milk"],
            &["some hot soup"],
            &["some jam and bread"],
        ],
    },
];

pub const OPENINGS: &[&str] = &[
    "[Once upon a time|Once|Long ago], there was a {nature} {kind} named {hero}.",
    "{hero} was a {nature} {kind}.",
    "There once was a {nature} {kind}. {his} name was {hero}.",
    "[Once upon a time|Long ago], a {nature} {kind} named {hero} lived near {place}.",
    "{hero full} was very {mood}.",
];
