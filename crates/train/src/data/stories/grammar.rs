//! Who is in the stories, and how they begin.

/// Someone in a story.
pub struct Character {
    pub name: &'static str,
    /// What they are, as in "a little girl".
    pub kind: &'static str,
    /// He, him, his, or as it is for her.
    pub pronouns: [&'static str; 3],
}

/// Words that are chosen together, one row for a story, and kept in it.
pub struct Choice {
    pub slots: &'static [&'static str],
    pub rows: &'static [&'static [&'static str]],
}

const HE: [&str; 3] = ["he", "him", "his"];
const SHE: [&str; 3] = ["she", "her", "her"];

const fn boy(name: &'static str) -> Character {
    Character { name, kind: "boy", pronouns: HE }
}

const fn girl(name: &'static str) -> Character {
    Character { name, kind: "girl", pronouns: SHE }
}

const fn he(name: &'static str, kind: &'static str) -> Character {
    Character { name, kind, pronouns: HE }
}

const fn she(name: &'static str, kind: &'static str) -> Character {
    Character { name, kind, pronouns: SHE }
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
    he("Bruno", "bear"),
    he("Hops", "rabbit"),
    he("Rusty", "dog"),
    he("Dot", "duck"),
    she("Mimi", "cat"),
    she("Pip", "mouse"),
    she("Bella", "fox"),
    she("Nutty", "squirrel"),
];

/// A friend may be anyone who can be a hero.
pub const FRIENDS: &[Character] = HEROES;

pub const HELPERS: &[Character] = &[
    she("mom", "mom"),
    he("dad", "dad"),
    she("grandma", "grandma"),
    he("grandpa", "grandpa"),
    she("aunt", "aunt"),
    he("uncle", "uncle"),
];

/// Words that any story may use.
pub const CHOICES: &[Choice] = &[
    Choice {
        slots: &["nature"],
        rows: &[&["little"], &["happy"], &["kind"], &["brave"], &["small"], &["clever"], &["shy"], &["funny"]],
    },
    Choice {
        slots: &["color"],
        rows: &[&["red"], &["blue"], &["green"], &["yellow"], &["pink"], &["white"], &["orange"], &["purple"]],
    },
    Choice {
        slots: &["place"],
        rows: &[
            &["the park"],
            &["the garden"],
            &["the woods"],
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
    "{hero} the {kind} was very {mood}.",
];
