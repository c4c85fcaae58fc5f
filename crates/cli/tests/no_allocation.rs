//! The command's own run allocates nothing in a step, whoever looks on: on a terminal, with the page open, readers that are
//! slow or stall, and event files written. What shows the run has threads of its own, which may allocate; all others must not.

#[cfg(target_os = "linux")]
#[allow(dead_code)]
#[path = "terminal/pseudo_terminal.rs"]
mod pseudo_terminal;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED: threads are told apart by their names, as on Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use crate::pseudo_terminal::OnTerminal;
    use gradus_train::run::{Event, Observer, Stop};
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// Counts calls while told to: those of threads that show the run, and those of all others.
    struct Counting;

    static COUNTED: AtomicBool = AtomicBool::new(false);
    static SHOWING: AtomicU64 = AtomicU64::new(0);
    static TRAINING: AtomicU64 = AtomicU64::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);

    /// Threads that show the run, by their names.
    const SHOW: [&[u8]; 2] = [b"dashboard\0", b"terminal\0"];

    fn count() {
        if COUNTED.load(Ordering::Relaxed) {
            let mut name = [0u8; 16];
            // SAFETY: the name of a thread has 16 bytes with its end.
            unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
            let shows = SHOW.iter().any(|known| name.starts_with(known));
            if shows { &SHOWING } else { &TRAINING }.fetch_add(1, Ordering::Relaxed);
        }
    }

    // SAFETY: every call is passed on to the system's allocator as it came.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count();
            // SAFETY: the caller's promise is passed on.
            unsafe { System.alloc(layout) }
        }
        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count();
            // SAFETY: the caller's promise is passed on.
            unsafe { System.realloc(pointer, layout, size) }
        }
        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            count();
            // SAFETY: the caller's promise is passed on.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// Counts from the tenth step until a second before the end.
    struct Meanwhile;

    impl Observer for Meanwhile {
        fn event(&mut self, event: &Event<'_>) {
            if let Event::Step(report) = event {
                let counted = report.step >= 10 && report.seconds_left.is_some_and(|left| left > 1.0);
                COUNTED.store(counted, Ordering::SeqCst);
                STEPS.fetch_add(counted.into(), Ordering::SeqCst);
            }
        }

        fn should_stop(&self) -> Stop {
            Stop::No
        }
    }

    /// Where the child tells what it counted.
    const COUNTS: &str = "GRADUS_COUNTS";
    const SMALL: &str = "--width 16 --layers 1 --heads 2 --sequence 16 --batch 4 --tokenizer byte --threads 2 \
        --eval-every 0 --sample-every 0 --save-every 0";

    pub fn main() {
        if let Some(path) = std::env::var_os(COUNTS) {
            return child(&PathBuf::from(path));
        }
        let folder = std::env::temp_dir().join(format!("gradus-no-allocation-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        on_a_terminal(&folder);
        piped(&folder, "lines", "");
        piped(&folder, "json", "--json");
        the_counter_counts();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn child(counts: &Path) {
        let options: Vec<String> = std::env::args().skip(1).collect();
        gradus_cli::train(&options.iter().map(|option| &option[..]).collect::<Vec<_>>(), &mut Meanwhile).unwrap();
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        std::fs::write(counts, format!("{} {} {}", read(&STEPS), read(&TRAINING), read(&SHOWING))).unwrap();
    }

    /// The command that trains and counts, with the file that it tells the counts in.
    fn counting(folder: &Path, name: &str, options: &str) -> (Command, PathBuf) {
        let counts = folder.join(format!("{name}.counts"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(SMALL.split_whitespace()).args(options.split_whitespace()).args(["--out", name]);
        command.current_dir(folder).env(COUNTS, &counts).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        (command, counts)
    }

    /// Steps that were counted, and calls by threads that show the run; there are none by others.
    fn counted(path: &Path) -> (u64, u64) {
        let text = std::fs::read_to_string(path).unwrap();
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers[1], 0, "calls by whoever trains, in {} steps: {path:?}", numbers[0]);
        assert!(numbers[0] > 50, "{} steps were counted: {path:?}", numbers[0]);
        (numbers[0], numbers[2])
    }

    fn on_a_terminal(folder: &Path) {
        let (command, counts) = counting(folder, "terminal", "--time 4s --dashboard 0 --tensorboard");
        let run = OnTerminal::start(command);
        run.wait_for("dashboard: http://127.0.0.1:");
        run.wait_for("memory  █");
        let shown = run.shown();
        let address = shown.split("dashboard: http://").nth(1).unwrap().split('/').next().unwrap();
        let readers = Readers::of(address);
        let (status, shown) = run.end();
        let answered = readers.end();
        assert!(status.success() && answered > 3, "{answered} answers: {shown}");
        assert!(counted(&counts).1 > 100, "those who show it were at work");
    }

    fn piped(folder: &Path, name: &str, options: &str) {
        let (mut command, counts) = counting(folder, name, &format!("--time 3s --tensorboard {options}"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        counted(&counts);
    }

    /// A page that is open, a reader that takes a byte now and then, and some that ask and never read.
    struct Readers {
        reads: Arc<AtomicBool>,
        page: JoinHandle<u64>,
        slow: JoinHandle<()>,
        _stalled: Vec<TcpStream>,
    }

    impl Readers {
        fn of(address: &str) -> Readers {
            let ask = |address: &str, target: &str, then: &str| -> std::io::Result<TcpStream> {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(Duration::from_secs(2)))?;
                let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: {then}\r\n\r\n");
                stream.write_all(head.as_bytes())?;
                Ok(stream)
            };
            let reads = Arc::new(AtomicBool::new(true));
            let stalled = (0..10).filter_map(|_| ask(address, "/runs/0/metrics", "keep-alive").ok()).collect();
            let (goes_on, at) = (reads.clone(), address.to_string());
            let page = std::thread::spawn(move || {
                let mut answered = 0;
                while goes_on.load(Ordering::Relaxed) {
                    for target in ["/runs", "/runs/0/history", "/runs/0/metrics", "/runs/0/samples", "/runs/0/config"] {
                        let mut text = vec![];
                        let read = ask(&at, target, "close").and_then(|mut stream| stream.read_to_end(&mut text));
                        answered += u64::from(read.is_ok() && text.starts_with(b"HTTP/1.1 200"));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                answered
            });
            let (goes_on, at) = (reads.clone(), address.to_string());
            let slow = std::thread::spawn(move || {
                let Ok(mut stream) = ask(&at, "/runs/0/metrics", "close") else { return };
                while goes_on.load(Ordering::Relaxed) && stream.read(&mut [0]).is_ok_and(|read| read > 0) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            Readers { reads, page, slow, _stalled: stalled }
        }

        /// How often the page was answered.
        fn end(self) -> u64 {
            self.reads.store(false, Ordering::Relaxed);
            self.slow.join().unwrap();
            self.page.join().unwrap()
        }
    }

    /// Or the test could not fail.
    fn the_counter_counts() {
        COUNTED.store(true, Ordering::SeqCst);
        drop(std::hint::black_box(vec![0u8; 100]));
        let thread = std::thread::Builder::new().name("dashboard".into());
        let allocating = thread.spawn(|| drop(std::hint::black_box(vec![0u8; 100]))).unwrap();
        allocating.join().unwrap();
        COUNTED.store(false, Ordering::SeqCst);
        assert!(TRAINING.load(Ordering::SeqCst) >= 2 && SHOWING.load(Ordering::SeqCst) >= 2);
    }
}
