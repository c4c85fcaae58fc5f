//! The page that a run is shown on while it goes.

use crate::dashboard::{Live, Reserved};
use gradus_train::run::{Event, Observer, Stop};
use std::mem;
use std::path::Path;

/// Where the run is shown.
pub enum Page {
    None,
    Reserved(Reserved),
    Live(Live),
}

impl Page {
    /// Opens the page with the first event: by then, what the process holds has been measured without it, and what the
    /// page may take is counted besides. Gives a line that says where it is.
    pub fn open(&mut self, folder: &Path) -> Option<Result<String, String>> {
        match mem::replace(self, Page::None) {
            Page::Reserved(place) => Some(match Live::start(place, folder) {
                Ok((live, told)) => {
                    *self = Page::Live(live);
                    Ok(told)
                }
                Err(error) => Err(format!("the run is not shown on a page: {error}")),
            }),
            page => {
                *self = page;
                None
            }
        }
    }

    /// Ends it.
    pub fn end(self) {
        if let Page::Live(live) = self {
            live.end();
        }
    }
}

/// Passes on what happens, and opens the page.
pub struct Watching<'a> {
    pub observer: &'a mut dyn Observer,
    pub page: &'a mut Page,
    pub folder: &'a Path,
}

impl Observer for Watching<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match self.page.open(self.folder) {
            Some(Ok(told)) => self.observer.event(&Event::Note(&told)),
            Some(Err(problem)) => self.observer.event(&Event::Warning(&problem)),
            None => {}
        }
        self.observer.event(event);
    }

    fn should_stop(&self) -> Stop {
        self.observer.should_stop()
    }
}
