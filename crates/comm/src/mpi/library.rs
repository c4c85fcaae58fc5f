//! An MPI that is loaded.

use crate::error::{Error, Result};
use crate::mpi::launcher::Implementation;
use crate::mpi::table::{Constants, Functions, Handle, Status};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int};
use std::time::{Duration, Instant};

/// Calls come from one thread at a time, whichever it is.
const SERIALIZED: c_int = 2;
/// All messages have the same tag: those of a pair come in the order in which they go.
const TAG: c_int = 17;
/// Room for the text of an error, which no MPI has longer.
const ERROR_BYTES: usize = 2048;

/// A library and what it has.
pub struct Mpi<H> {
    pub constants: Constants<H>,
    pub functions: Functions<H>,
    /// Its file.
    pub file: String,
    /// It stays loaded for as long as its functions are there to be called.
    _library: Library,
}

impl<H: Handle> Mpi<H> {
    /// The first of its files that is there.
    pub fn load() -> Result<Mpi<H>> {
        for file in H::FILES {
            // Plugins of MPI look for its names, so they are everybody's.
            // SAFETY: the initializers of an MPI have no demands on whoever loads it.
            let Ok(library) = (unsafe { Library::open(Some(*file), RTLD_NOW | RTLD_GLOBAL) }) else { continue };
            // A file of this name may be another MPI's.
            let Some(constants) = H::constants(&library) else { continue };
            // SAFETY: its constants show that the library is of this kind.
            let functions = unsafe { Functions::of(&library) };
            let lacking = |name| Error::Lacking { library: file.to_string(), name };
            return Ok(Mpi {
                constants,
                functions: functions.map_err(lacking)?,
                file: file.to_string(),
                _library: library,
            });
        }
        Err(Error::NoLibrary {
            launcher: H::IMPLEMENTATION.launcher(),
            library: H::FILES[0],
            package: H::PACKAGE,
            other: match H::IMPLEMENTATION {
                Implementation::OpenMpi => "mpiexec.mpich",
                Implementation::Mpich => "mpirun.openmpi",
            },
        })
    }

    /// The first call.
    pub fn start(&self) -> Result<()> {
        let mut level = 0;
        let (none, arguments) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: arguments may be left out, and the level is written.
        self.check("MPI_Init_thread", unsafe {
            (self.functions.init_thread)(none, arguments, SERIALIZED, &mut level)
        })?;
        if level < SERIALIZED {
            return Err(Error::Threads { library: self.file.clone() });
        }
        // SAFETY: both handles are MPI's own.
        let set = unsafe { (self.functions.set_error_handler)(self.constants.world, self.constants.errors_return) };
        self.check("MPI_Comm_set_errhandler", set)
    }

    pub fn rank_and_size(&self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the group of all is there from the start on, and both numbers are written.
        unsafe {
            self.check("MPI_Comm_rank", (self.functions.rank)(self.constants.world, &mut rank))?;
            self.check("MPI_Comm_size", (self.functions.size)(self.constants.world, &mut size))?;
        }
        Ok((rank as usize, size as usize))
    }

    /// The last call, once all are there: alone it would wait for the others for ever.
    pub fn end(&self, patience: Duration) -> Result<()> {
        let mut request = self.constants.no_request;
        // SAFETY: the request is written, and lives until it is done or the process ends without another call.
        self.check("MPI_Ibarrier", unsafe { (self.functions.barrier)(self.constants.world, &mut request) })?;
        let pause = Pause::new();
        while self.test(&mut request)?.is_none() {
            if pause.waited() > patience {
                return Err(Error::Alone { waited: patience });
            }
            pause.sleep();
        }
        // SAFETY: nothing is under way.
        self.check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    /// Begins to send.
    ///
    /// # Safety
    /// The bytes must be there, and stay as they are, until the request is done.
    pub unsafe fn send(&self, bytes: *const u8, count: usize, to: usize, request: &mut H) -> Result<()> {
        let (count, world) = (self.counted(count)?, self.constants.world);
        // SAFETY: the caller's; the request is written.
        let sent = unsafe {
            (self.functions.send)(bytes.cast(), count, self.constants.byte, to as c_int, TAG, world, request)
        };
        self.check("MPI_Isend", sent)
    }

    /// Begins to receive.
    ///
    /// # Safety
    /// The bytes must be there for nobody but MPI until the request is done.
    pub unsafe fn receive(&self, bytes: *mut u8, count: usize, from: usize, request: &mut H) -> Result<()> {
        let (count, world) = (self.counted(count)?, self.constants.world);
        // SAFETY: the caller's; the request is written.
        let received = unsafe {
            (self.functions.receive)(bytes.cast(), count, self.constants.byte, from as c_int, TAG, world, request)
        };
        self.check("MPI_Irecv", received)
    }

    fn counted(&self, bytes: usize) -> Result<c_int> {
        c_int::try_from(bytes).map_err(|_| Error::Misuse("a message of MPI has less than 2 GB"))
    }

    /// Asks MPI to give up a request, which then is done, unless it cannot be given up.
    pub fn cancel(&self, request: &mut H) {
        // SAFETY: the request is one that MPI gave and is not done with. A refusal shows in it not being done.
        let _ = unsafe { (self.functions.cancel)(request) };
    }

    /// Whether a request is done, and then with what.
    pub fn test(&self, request: &mut H) -> Result<Option<Status>> {
        let (mut done, mut status) = (0, Status::EMPTY);
        // SAFETY: the request is one that MPI gave, or none; the others are written.
        self.check("MPI_Test", unsafe { (self.functions.test)(request, &mut done, &mut status) })?;
        Ok((done != 0).then_some(status))
    }

    /// Bytes that came.
    pub fn count(&self, status: &Status) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the status is one that MPI wrote, and the count is written.
        self.check("MPI_Get_count", unsafe { (self.functions.count)(status, self.constants.byte, &mut count) })?;
        Ok(count as usize)
    }

    pub fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = ([0 as c_char; ERROR_BYTES], 0);
        // SAFETY: there is room for the longest text, which ends with a zero.
        let reason = unsafe {
            match (self.functions.error_string)(code, text.as_mut_ptr(), &mut length) {
                0 => CStr::from_ptr(text.as_ptr()).to_string_lossy().trim().replace('\n', "; "),
                _ => format!("error {code}"),
            }
        };
        Err(Error::Mpi { call, reason })
    }
}

/// Sleeping between looks: an eighth of what was waited already, so that little is lost, and never long.
pub struct Pause {
    since: Instant,
}

impl Pause {
    /// Up to here it only steps back: what comes at once is not slept over.
    const EAGER: Duration = Duration::from_micros(30);
    const LONGEST: Duration = Duration::from_millis(1);

    pub fn new() -> Pause {
        Pause { since: Instant::now() }
    }

    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Where what is awaited is expected after so long: it sleeps until shortly before that, and then an eighth of it at a time.
    pub fn sleep_expecting(&self, expected: Duration) {
        let waited = self.waited();
        let early = (expected * 3 / 4).checked_sub(waited).filter(|left| !left.is_zero());
        std::thread::sleep(early.unwrap_or(expected.max(waited) / 8).min(Pause::LONGEST));
    }

    pub fn sleep(&self) {
        match self.waited() {
            waited if waited < Pause::EAGER => std::thread::yield_now(),
            waited => std::thread::sleep((waited / 8).min(Pause::LONGEST)),
        }
    }
}
