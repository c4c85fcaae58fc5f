//! The functions of an MPI that are called, and what differs between those there are: handles are addresses in one and
//! integers in the other, and constants have other values.

use crate::mpi::launcher::Implementation;
use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

/// How an MPI names what it has.
pub trait Handle: Copy + PartialEq + Send + Sync + 'static {
    const IMPLEMENTATION: Implementation;
    /// Files that have it, the likeliest first.
    const FILES: &'static [&'static str];
    /// The package of it that Debian and Ubuntu have.
    const PACKAGE: &'static str;

    /// The handles that it has from its start on; none if the library is another one.
    fn constants(library: &Library) -> Option<Constants<Self>>;
}

/// Handles that an MPI has from its start on.
#[derive(Clone, Copy)]
pub struct Constants<H> {
    pub world: H,
    pub byte: H,
    pub errors_return: H,
    pub no_request: H,
}

/// Open MPI's handles.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub struct Address(*mut c_void);

// SAFETY: an address names something that MPI owns. It is only ever given back to MPI, whose functions may be called from any
// thread, one at a time.
unsafe impl Send for Address {}
// SAFETY: as above; all that a shared one can be is copied.
unsafe impl Sync for Address {}

impl Handle for Address {
    const IMPLEMENTATION: Implementation = Implementation::OpenMpi;
    const FILES: &'static [&'static str] = &["libmpi.so.40", "libmpi.so.80"];
    const PACKAGE: &'static str = "openmpi-bin";

    fn constants(library: &Library) -> Option<Constants<Address>> {
        // SAFETY: these symbols are variables of the library, of which only the addresses are taken.
        let address =
            |name: &str| unsafe { library.get::<*mut c_void>(name.as_bytes()) }.ok().map(|at| at.as_raw_ptr());
        Some(Constants {
            world: Address(address("ompi_mpi_comm_world")?),
            byte: Address(address("ompi_mpi_byte")?),
            errors_return: Address(address("ompi_mpi_errors_return")?),
            no_request: Address(address("ompi_request_null")?),
        })
    }
}

/// MPICH's handles, and those of all that keep to its binary interface.
impl Handle for c_int {
    const IMPLEMENTATION: Implementation = Implementation::Mpich;
    const FILES: &'static [&'static str] = &["libmpich.so.12", "libmpi.so.12"];
    const PACKAGE: &'static str = "mpich";

    fn constants(library: &Library) -> Option<Constants<c_int>> {
        // SAFETY: only whether there is such a symbol is looked at.
        let other = unsafe { library.get::<*mut c_void>(b"ompi_mpi_comm_world") }.is_ok();
        let (world, byte) = (0x4400_0000, 0x4c00_010d);
        (!other).then_some(Constants { world, byte, errors_return: 0x5400_0001, no_request: 0x2c00_0000 })
    }
}

/// Room for a status, which no MPI has larger; nothing reads it but MPI.
#[repr(C, align(16))]
pub struct Status([u64; 16]);

impl Status {
    pub const EMPTY: Status = Status([0; 16]);
}

/// A function for each name, as `mpi.h` states it: all give 0 or the code of an error.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of a library.
        pub struct Functions<H> {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H: Handle> Functions<H> {
            /// Those of a library, or the first name that it does not have.
            ///
            /// # Safety
            /// The library must be an MPI whose handles are these.
            pub unsafe fn of(library: &Library) -> Result<Functions<H>, &'static str> {
                // SAFETY: the functions of an MPI with these handles have these types.
                unsafe { Ok(Functions { $($name: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)* }) }
            }
        }
    };
}

functions! {
    init_thread: "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize: "MPI_Finalize" ();
    rank: "MPI_Comm_rank" (H, *mut c_int);
    size: "MPI_Comm_size" (H, *mut c_int);
    set_error_handler: "MPI_Comm_set_errhandler" (H, H);
    send: "MPI_Isend" (*const c_void, c_int, H, c_int, c_int, H, *mut H);
    receive: "MPI_Irecv" (*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    barrier: "MPI_Ibarrier" (H, *mut H);
    test: "MPI_Test" (*mut H, *mut c_int, *mut Status);
    cancel: "MPI_Cancel" (*mut H);
    count: "MPI_Get_count" (*const Status, H, *mut c_int);
    error_string: "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
}
