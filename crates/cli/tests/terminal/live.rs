//! What a person sees while a run goes on: the screen of a terminal after everything that was sent to it.

use crate::place::{Place, SMALL};
use crate::pseudo_terminal::OnTerminal;

/// A terminal's screen, as far as the frame needs one: to move up and to clear. Colours are no part of it.
struct Screen {
    columns: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    fn new(columns: usize) -> Screen {
        Screen { columns, lines: vec![vec![]], row: 0, column: 0 }
    }

    /// Follows what is sent, and gives every screen that there was when a frame was whole.
    fn after_each_frame(mut self, sent: &str) -> Vec<String> {
        let (mut screens, mut rest) = (vec![], sent.chars().peekable());
        while let Some(c) = rest.next() {
            match c {
                '\r' => self.column = 0,
                '\n' => self.go_to(self.row + 1),
                '\u{1b}' => {
                    assert_eq!(rest.next(), Some('['), "another escape");
                    let mut number = String::new();
                    while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                        number.push(digit);
                    }
                    match rest.next().unwrap() {
                        'A' => self.row = self.row.checked_sub(number.parse().unwrap()).expect("within what was shown"),
                        'K' => self.lines[self.row].truncate(self.column),
                        'J' => {
                            self.lines.truncate(self.row + 1);
                            self.lines[self.row].truncate(self.column);
                            screens.push(self.text());
                        }
                        other => panic!("escape {number}{other}"),
                    }
                }
                c => self.put(c),
            }
        }
        screens.push(self.text());
        screens
    }

    fn go_to(&mut self, row: usize) {
        self.row = row;
        while self.lines.len() <= row {
            self.lines.push(vec![]);
        }
    }

    fn put(&mut self, c: char) {
        if self.column == self.columns {
            self.go_to(self.row + 1);
            self.column = 0;
        }
        let line = &mut self.lines[self.row];
        line.resize(line.len().max(self.column + 1), ' ');
        line[self.column] = c;
        self.column += 1;
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_string() + "\n").collect()
    }
}

fn count(screen: &str, start: &str) -> usize {
    screen.lines().filter(|line| line.starts_with(start)).count()
}

#[test]
fn the_frame_is_there_once_and_gone_at_the_end() {
    let place = Place::new("frame");
    for (columns, name) in [(100, "wide"), (40, "narrow")] {
        let options = "--time 3s --memory 60MB --eval-every 100 --sample-every 300 --save-every 0";
        let command = place.command(&format!("train {SMALL} {options} --out {name}"));
        let (status, shown) = OnTerminal::start_within(columns, command).end();
        assert_eq!(status.code(), Some(0), "{shown}");
        let screens = Screen::new(columns.into()).after_each_frame(&shown);
        let mut with_all = 0;
        for screen in &screens {
            for start in ["loss    ", "memory  █"] {
                assert!(count(screen, start) <= 1, "{start} more than once on {columns} columns:\n{screen}");
            }
            with_all += usize::from(count(screen, "loss    ") == 1 && screen.contains(" of 60 MB\n"));
        }
        assert!(with_all > 5, "{with_all} frames with everything of {}", screens.len());
        let last = screens.last().unwrap();
        assert!(count(last, "loss    ") == 0 && count(last, "memory  █") == 0, "left behind:\n{last}");
        assert!(last.contains("trained: ") && last.contains(": validation loss "), "{last}");
    }
}

#[test]
fn other_locales_and_terminals_have_what_they_can_show() {
    let place = Place::new("ascii");
    let options = format!("train {SMALL} --time 2s --eval-every 50 --sample-every 0");
    let mut ascii = place.command(&format!("{options} --out ascii"));
    ascii.env("LC_ALL", "C").env("NO_COLOR", "1");
    let (status, shown) = OnTerminal::start(ascii).end();
    // A sample may be any text.
    assert!(status.success() && !shown.contains(['█', '░', '▁', '▄', '▇']), "{shown}");
    assert!(shown.contains("\nmemory  #") && shown.contains("\nloss    "), "{shown}");
    let mut dumb = place.command(&format!("{options} --out dumb"));
    dumb.env("TERM", "dumb");
    let (status, shown) = OnTerminal::start(dumb).end();
    assert!(status.success() && !shown.contains('\u{1b}') && shown.contains("\nstep "), "{shown}");
}
