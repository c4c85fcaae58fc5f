//! NCCL, which brings messages between the devices of several processes: a table of its functions, loaded when it is first
//! asked for.

use crate::Message;
use crate::error::{Error, Result};
use crate::library;
use cudarc::driver::sys::CUstream;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Where ranks find each other: what NCCL calls a unique id.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; Id::BYTES]);

impl Id {
    const BYTES: usize = 128;
}

/// NCCL's handle of a group.
type Group = *mut c_void;

const FLOAT32: c_int = 7;
const SUCCESS: c_int = 0;
/// What is under way is no error.
const IN_PROGRESS: c_int = 7;

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Those of a library, or the first name that it does not have.
            ///
            /// # Safety
            /// The library must be NCCL.
            unsafe fn of(library: &Library) -> Result<Functions, &'static str> {
                // SAFETY: NCCL's functions have these types.
                unsafe { Ok(Functions { $($name: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)* }) }
            }
        }
    };
}

functions! {
    unique_id: "ncclGetUniqueId" (*mut Id) -> c_int;
    connect: "ncclCommInitRank" (*mut Group, c_int, Id, c_int) -> c_int;
    begin: "ncclGroupStart" () -> c_int;
    end: "ncclGroupEnd" () -> c_int;
    send: "ncclSend" (*const c_void, usize, c_int, c_int, Group, CUstream) -> c_int;
    receive: "ncclRecv" (*mut c_void, usize, c_int, c_int, Group, CUstream) -> c_int;
    failed: "ncclCommGetAsyncError" (Group, *mut c_int) -> c_int;
    abort: "ncclCommAbort" (Group) -> c_int;
    error_string: "ncclGetErrorString" (c_int) -> *const c_char;
    last_error: "ncclGetLastError" (Group) -> *const c_char;
}

const FILE: &str = "libnccl.so.2";

/// The library's functions.
fn functions() -> Result<&'static Functions> {
    static FOUND: OnceLock<Result<Functions>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let advice = "ranks on GPUs need it: `apt install libnccl2`, or set LD_LIBRARY_PATH to the folder that has it";
        let library = library::open(FILE).ok_or(Error::Missing { library: FILE, advice })?;
        // It stays for as long as the process.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the file is NCCL's.
        let functions = unsafe { Functions::of(library) };
        functions
            .map_err(|name| Error::Call { call: name, reason: format!("{FILE} has no such function; update NCCL") })
    });
    found.as_ref().map_err(Error::clone)
}

/// Where ranks find each other, to be told to all of them.
pub(crate) fn meeting_point() -> Result<Vec<u8>> {
    let functions = functions()?;
    let mut id = Id([0; Id::BYTES]);
    // SAFETY: the id is written.
    check(functions, "ncclGetUniqueId", std::ptr::null_mut(), unsafe { (functions.unique_id)(&mut id) })?;
    Ok(id.0.to_vec())
}

/// A rank's end of a group. It stays for as long as the process, as MPI does: to destroy it, NCCL may wait for others, of which one may
/// be gone.
pub(crate) struct Communicator {
    functions: &'static Functions,
    group: Group,
}

// SAFETY: a group may be used by any thread, one at a time.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Meets all others, who do the same. The device's context must be current, here and in all calls that follow.
    pub fn connect(rank: usize, ranks: usize, meeting_point: &[u8]) -> Result<Communicator> {
        let functions = functions()?;
        let id = Id(meeting_point.try_into().map_err(|_| Error::Call {
            call: "ncclCommInitRank",
            reason: format!("{} bytes do not say where ranks meet", meeting_point.len()),
        })?);
        let mut group = std::ptr::null_mut();
        // SAFETY: the group is written.
        let code = unsafe { (functions.connect)(&mut group, ranks as c_int, id, rank as c_int) };
        check(functions, "ncclCommInitRank", std::ptr::null_mut(), code)?;
        Ok(Communicator { functions, group })
    }

    /// Has messages sent and received, all at once, after what was sent to the stream before.
    ///
    /// # Safety
    /// Addresses must be of live memory of the device, until the stream has come so far.
    pub unsafe fn exchange(&mut self, messages: &[Message], stream: CUstream) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        if self.group.is_null() {
            return Err(Error::Peers { call: "NCCL", reason: "an exchange before was given up".to_string() });
        }
        let (functions, group) = (self.functions, self.group);
        // SAFETY: begins what is ended below.
        check(functions, "ncclGroupStart", group, unsafe { (functions.begin)() })?;
        let mut posted = Ok(());
        for &Message { peer, is_sent, address, numbers } in messages {
            let peer = peer as c_int;
            // SAFETY: the caller's promise.
            posted = posted.and(unsafe {
                match is_sent {
                    true => {
                        let code = (functions.send)(address as *const c_void, numbers, FLOAT32, peer, group, stream);
                        check(functions, "ncclSend", group, code)
                    }
                    false => {
                        let code = (functions.receive)(address as *mut c_void, numbers, FLOAT32, peer, group, stream);
                        check(functions, "ncclRecv", group, code)
                    }
                }
            });
        }
        // SAFETY: was begun above.
        let ended = check(functions, "ncclGroupEnd", group, unsafe { (functions.end)() });
        posted.and(ended)
    }

    /// Refuses to go on if something that is under way has failed.
    pub fn check(&self) -> Result<()> {
        let mut failed = SUCCESS;
        // SAFETY: the code is written.
        let asked = unsafe { (self.functions.failed)(self.group, &mut failed) };
        check(self.functions, "ncclCommGetAsyncError", self.group, asked)?;
        check(self.functions, "NCCL", self.group, failed)
    }

    /// Gives up what is under way, so that nothing on the device waits for it any longer. Nothing can be exchanged then.
    pub fn abort(&mut self) {
        let group = std::mem::replace(&mut self.group, std::ptr::null_mut());
        if !group.is_null() {
            // SAFETY: the group is there, and used no more. An error has nobody to go to.
            unsafe { (self.functions.abort)(group) };
        }
    }
}

/// What NCCL says of a code that is an error, with what it says of the group it was about, or of none.
fn check(functions: &Functions, call: &'static str, group: Group, code: c_int) -> Result<()> {
    if matches!(code, SUCCESS | IN_PROGRESS) {
        return Ok(());
    }
    // SAFETY: both give texts that end with a zero, or none.
    let texts = unsafe { [(functions.error_string)(code), (functions.last_error)(group)] };
    // SAFETY: as above.
    let said = |text: &*const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(*text) }.to_string_lossy());
    let said: Vec<_> = texts.iter().filter_map(said).filter(|text| !text.is_empty()).collect();
    Err(Error::Peers { call, reason: said.join(": ").trim().replace('\n', "; ") })
}
