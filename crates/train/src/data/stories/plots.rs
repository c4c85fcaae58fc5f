//! What happens in the stories: a want, a small trouble, and how it ends.

use super::grammar::Choice;

/// A story without its opening.
#[derive(Clone, Copy)]
pub struct Plot {
    pub choices: &'static [Choice],
    pub sentences: &'static [&'static str],
}

const TOYS: Choice = Choice {
    slots: &["toy"],
    rows: &[&["ball"], &["kite"], &["doll"], &["toy car"], &["toy boat"], &["drum"], &["hat"], &["book"], &["bell"]],
};

const LOST: Plot = Plot {
    choices: &[
        TOYS,
        Choice {
            slots: &["first spot", "last spot"],
            rows: &[
                &["under the bed", "behind the door"],
                &["in the kitchen", "under a chair"],
                &["in the big box", "in the tall grass"],
                &["behind the house", "next to the pond"],
                &["under the table", "on top of a shelf"],
                &["in the tall grass", "under an old tree"],
            ],
        },
    ],
    sentences: &[
        "{hero} had a {color} {toy} and [loved it very much|played with it every day|took it everywhere].",
        "{time}, {he} could not find the {toy}. {he} looked {first spot}, but it was not there.",
        "[\"Where is my {toy}?\" {he} asked.|{he} was very sad.|] {friend full} came to help.",
        "[At last,|Then|Soon,] {friend} found the {color} {toy} {last spot}!",
        "[\"Thank you, {friend}!\" said {hero}.|{hero} gave {friend} a big hug.] [They played with the {toy} until the sun went down.|{hero} was happy again.|]",
    ],
};

const SHARE: Plot = Plot {
    choices: &[],
    sentences: &[
        "{time}, {his} {helper} gave {him} {treat}. {he} took it to {place} and sat down [under a tree|on a rock|on the grass].",
        "[Then|Just then,] {he} saw {friend full}. {friend} looked [sad|tired] and hungry.",
        "[\"We can share,\" said {hero}.|{hero} thought about it and gave half to {friend}.] [They ate together and it tasted very good.|They sat side by side and ate it all.]",
        "[From that day on, they were best friends.|It is good to share.|\"You are a good friend,\" said {friend}, and {hero} smiled.]",
    ],
};

const STUCK: Plot = Plot {
    choices: &[
        Choice { slots: &["toy"], rows: &[&["ball"], &["kite"], &["hat"], &["balloon"], &["paper plane"]] },
        Choice {
            slots: &["tool"],
            rows: &[&["a long stick"], &["a ladder"], &["a rope"], &["a broom"], &["a tall chair"]],
        },
    ],
    sentences: &[
        "{time}, {hero} went to {place} to play with {his} {color} {toy}.",
        "[A strong wind came|The wind blew hard] and the {toy} flew up into a [tall|big] tree. [It was stuck!|\"Oh no!\" said {hero}.]",
        "{hero} [jumped and jumped|tried to climb the tree|threw a little stone], but {he} could not get it.",
        "{friend full} saw {him} and [ran home to get|came with|brought] {tool}. [Soon|At last], the {toy} came down.",
        "[\"Thank you!\" said {hero}. \"You are so clever.\"|{hero} was so happy that {he} danced.|They played with the {color} {toy} all day.|They laughed and played until it was dark.]",
    ],
};

const AFRAID: Plot = Plot {
    choices: &[Choice {
        slots: &["noise", "cause"],
        rows: &[
            &["a loud boom", "only the thunder"],
            &["a soft tap", "only the rain on the window"],
            &["a strange hoot", "only an owl in the tree"],
            &["a scratch at the door", "only the cat who wanted to come in"],
            &["a long whoosh", "only the wind"],
            &["a little squeak", "only a mouse"],
        ],
    }],
    sentences: &[
        "[It was night|It was late|The moon was up], and {hero} was in bed. [Then|Suddenly,] {he} heard {noise}.",
        "[{hero} was scared.|{he} hid under the blanket.|\"What is that?\" {he} asked.] {his} {helper} came [at once|with a small light].",
        "[They listened together.|They went to look, hand in hand.] It was {cause}!",
        "[\"See? You are safe,\" said {his} {helper}.|{hero} laughed.|{hero} felt brave again.] {his} {helper} [sang a song|told a story|gave {him} a kiss], and {hero} fell asleep.",
    ],
};

const LEARN: Plot = Plot {
    choices: &[Choice {
        slots: &["skill", "trouble"],
        rows: &[
            &["swim", "was afraid of the water"],
            &["ride a bike", "fell on the grass"],
            &["skate", "fell on the ice"],
            &["fly a kite", "made a big knot"],
            &["climb a tree", "slid down again"],
            &["jump over the brook", "got very wet"],
            &["bake bread", "burned it"],
            &["sing a long song", "forgot the words"],
        ],
    }],
    sentences: &[
        "{hero} wanted to learn how to {skill}. [{friend} could do it very well.|It looked like so much fun.|]",
        "{time}, {he} tried it for the first time, but {he} {trouble}.",
        "[\"I can not do it,\" {he} said.|{he} was sad and wanted to stop.] [\"Do not give up,\" said {friend}.|\"Try again,\" said {friend}. \"I will help you.\"]",
        "So {hero} tried [day after day|every day|all week]. [At last|Then, one day], {he} could {skill}!",
        "[\"You did it!\" said {friend}.|{hero} was very proud.|{he} ran home to tell {his} {helper}.|Now {he} knew that you must try and try.]",
    ],
};

const RAIN: Plot = Plot {
    choices: &[Choice {
        slots: &["indoor game"],
        rows: &[
            &["made a tent out of a blanket"],
            &["painted a big picture"],
            &["built a house out of boxes"],
            &["made little boats out of paper"],
            &["sang songs and danced"],
            &["read a book about the sea"],
        ],
    }],
    sentences: &[
        "{time}, {hero} and {friend} wanted to go to {place}. But it [began to rain|rained and rained].",
        "[\"Now we can not go,\" said {hero}.|They sat at the window and were sad.] [Then {friend} had an idea.|\"I have an idea,\" said {friend}.]",
        "They [stayed inside and|went in and] {indoor game}. [It was so much fun!|They laughed a lot.|{hero}'s {helper} gave them {treat}.]",
        "[Soon|After a while], the rain stopped, and there was a [big|bright] rainbow in the sky. [They ran out and jumped in the puddles.|\"I like the rain now,\" said {hero}.|It was the best day of all.]",
    ],
};

const RESCUE: Plot = Plot {
    choices: &[Choice {
        slots: &["animal", "hurt", "leaves"],
        rows: &[
            &["bird", "wing", "flew up into the sky"],
            &["butterfly", "wing", "flew from flower to flower"],
            &["frog", "leg", "jumped into the pond"],
            &["turtle", "foot", "walked slowly to the water"],
            &["lamb", "leg", "ran back to the other sheep"],
            &["owl", "wing", "flew back to the trees"],
        ],
    }],
    sentences: &[
        "{time}, {hero} [went for a walk to|was on the way to|played near] {place}. There {he} saw a small {animal} with a hurt {hurt}.",
        "[\"Do not worry, I will help you,\" said {hero}.|{hero} felt sorry for the {animal}.] {he} took it home with care.",
        "{his} {helper} made a soft bed, and {hero} gave the {animal} [food|water|some bread] every day.",
        "After [a few days|a week], the {hurt} was well again. The {animal} {leaves}.",
        "[\"Goodbye, little {animal}!\" called {hero}.|{hero} waved for a long time.|{hero} was a little sad, but very happy too.|{his} {helper} was proud of {him}.]",
    ],
};

const BUILD: Plot = Plot {
    choices: &[Choice {
        slots: &["work", "part"],
        rows: &[
            &["tower", "blocks"],
            &["castle", "sand"],
            &["house", "sticks"],
            &["bridge", "stones"],
            &["snowman", "snow"],
            &["fort", "boxes"],
        ],
    }],
    sentences: &[
        "{time}, {hero} made a big {work} out of {part}. It took [all morning|a long time].",
        "Then {friend} came running and did not look. [Bump!|Crash!] The {work} fell down.",
        "[{hero} was angry.|{hero} wanted to cry.|] \"I am sorry,\" said {friend}. \"[I did not see it|I did not want to do that].\"",
        "\"[That is all right|I am not angry],\" said {hero}. \"[Will you help me?|Let us make it again.]\"",
        "So they made a new {work} together. It was [even bigger than the first one|the best {work} of all]. [They put a {color} flag on top.|Two can do more than one.|]",
    ],
};

const GROW: Plot = Plot {
    choices: &[Choice {
        slots: &["plant"],
        rows: &[&["flower"], &["apple tree"], &["pumpkin"], &["bean plant"], &["strawberry plant"], &["rose"]],
    }],
    sentences: &[
        "{time}, {his} {helper} gave {hero} a small seed. [{he} put it in the ground and gave it water every day.|{hero} put it in the ground near {place}.]",
        "But nothing came up. [\"It does not grow,\" said {hero}.|{hero} was sad.] [\"You must wait,\" said {friend}.|\"Good things take time,\" said {friend}.]",
        "[{hero} waited and waited.|The sun was warm, and the rain was soft.] Then, one morning, there was a [tiny|small] green leaf!",
        "[It grew and grew.|Each day it was a little bigger.] In the end it was a [big|beautiful] {plant}, and [they were both very happy|everyone came to see it].",
    ],
};

const TURNS: Plot = Plot {
    choices: &[TOYS],
    sentences: &[
        "{time}, {hero} and {friend} found a {color} {toy} at {place}. [They both wanted it.|\"It is mine!\" said {hero}. \"No, it is mine!\" said {friend}.]",
        "They pulled and pulled, and [the {toy} fell into the mud|the {toy} broke a little|both of them fell down].",
        "{hero}'s {helper} [saw it and said|came and said], \"You can take turns.\"",
        "[\"I am sorry,\" said {hero}. \"I am sorry too,\" said {friend}.|\"You can go first,\" said {hero}. \"Thank you,\" said {friend}.]",
        "[It was much more fun that way.|They played all day and did not fight again.|Then they ate {treat} together.]",
    ],
};

const GIFT: Plot = Plot {
    choices: &[Choice {
        slots: &["gift", "making"],
        rows: &[
            &["a card", "drew a big heart on it"],
            &["a crown of flowers", "picked the best flowers"],
            &["a cake", "mixed milk, eggs and sugar"],
            &["a scarf", "used soft wool"],
            &["a song", "sang it again and again"],
            &["a picture", "used every color"],
        ],
    }],
    sentences: &[
        "{time}, it was {friend}'s birthday, but {hero} had no gift. [{he} asked {his} {helper} for help.|\"What can I do?\" {he} asked {his} {helper}.]",
        "\"[Make something with love|The best gifts are made by hand],\" said {his} {helper}.",
        "So {hero} made {gift}. {he} {making}. [It took all day.|It was hard work.|]",
        "\"This is for you,\" {he} said to {friend}. {friend} [smiled a big smile|jumped for joy]. [They ate {treat} and played games.|Then they danced and sang.|{hero} went home with a happy heart.]",
    ],
};

const FOUND: Plot = Plot {
    choices: &[Choice {
        slots: &["thing", "inside"],
        rows: &[
            &["a small box", "a shiny coin"],
            &["an old bag", "a map of the woods"],
            &["a glass jar", "a letter"],
            &["a wooden chest", "a golden key"],
            &["a basket", "a silver ring"],
            &["a blue shell", "a white pearl"],
        ],
    }],
    sentences: &[
        "{he} liked to look for [new things|secrets|treasure] at {place}.",
        "{time}, {hero} found {thing} [under a bush|behind a rock|near the path]. Inside there was {inside}!",
        "{hero} showed it to {friend}. \"[But it is not ours|We can not keep it],\" said {friend}. \"[We must give it back|We must ask around].\"",
        "They asked [everyone they met|at every house]. [At last|In the end], an old [man|woman] said, \"That is mine! I lost it long ago.\"",
        "[They gave it back with a smile.|{hero} gave it back.] [As a thank you|In return], they got {treat}.",
    ],
};

pub const PLOTS: &[Plot] = &[LOST, SHARE, STUCK, AFRAID, LEARN, RAIN, RESCUE, BUILD, GROW, TURNS, GIFT, FOUND];
