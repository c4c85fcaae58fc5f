//! What the exchange of a step takes beside `MPI_Allreduce` of the same buckets by the same library: the sums of the reference case,
//! in turns, without a step. `bench/exchange` runs it.
//!
//! `mpirun.openmpi -n RANKS exchange STEP_MS`

use gradus_train::lanes::{Lanes, Place};
use gradus_train::ranks::{BareExchange, Transport, join};
use std::ffi::{CStr, c_int, c_void};
use std::time::Instant;

const LANES: usize = 8;
const TURNS: usize = 31;

type Allreduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void) -> c_int;

fn main() {
    let step: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("the milliseconds of a step");
    let mut transport = join().expect("MPI is there").expect("it is started by mpirun.openmpi");
    let place = Place { rank: transport.rank(), ranks: transport.ranks() };
    let (numbers, weights) = reference();
    let mut bare = BareExchange::new(&Lanes::at(LANES, place), &numbers, weights);
    let mut buckets: Vec<Vec<f32>> = bare.buckets().iter().map(|count| vec![1.0; *count]).collect();
    let (mut ours, mut plain) = (vec![], vec![]);
    for _ in 0..TURNS {
        ours.push(timed(&mut *transport, |transport| bare.exchange(transport).expect("it is exchanged")));
        plain.push(timed(&mut *transport, |_| buckets.iter_mut().for_each(|bucket| allreduce(bucket))));
    }
    let sum = (place.ranks as f32).powi(TURNS as i32);
    assert!(bare.first_of(0) == sum && buckets[0][0] == sum, "both add up");
    if place.rank == 0 {
        let (ours, plain) = (median(ours), median(plain));
        let all: usize = numbers.iter().sum();
        println!(
            "{} ranks, {all} numbers in {} buckets: ours {ours:.2} ms, MPI_Allreduce {plain:.2} ms, {:+.2} % of a step of {step:.0} ms",
            place.ranks,
            buckets.len(),
            100.0 * (ours - plain) / step
        );
    }
    gradus_train::ranks::leave().expect("all are done");
}

/// The numbers of each sum of the reference case: vocabulary 788, width 256, 6 layers, sequence 128. A step exchanges one more of the
/// table, which is used twice. Gives the weights among them.
fn reference() -> (Vec<usize>, usize) {
    let (vocabulary, width, layers, sequence) = (788, 256, 6, 128);
    let (norm, square) = ([width, width], width * width);
    let products = [3 * square, 3 * width, square, width];
    let feed_forward = [4 * square, 4 * width, 4 * square, width];
    let mut numbers = vec![vocabulary * width, sequence * width];
    for _ in 0..layers {
        numbers.extend(norm.iter().chain(&products).chain(&norm).chain(&feed_forward));
    }
    numbers.extend([width, width, 1]);
    let weights = numbers.len() - 1;
    (numbers, weights)
}

fn timed(transport: &mut dyn Transport, work: impl FnOnce(&mut dyn Transport)) -> f64 {
    transport.barrier().expect("all are there");
    let start = Instant::now();
    work(transport);
    1000.0 * start.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The sums of all ranks, by Open MPI's own algorithm.
fn allreduce(numbers: &mut [f32]) {
    /// `MPI_IN_PLACE`.
    const IN_PLACE: *const c_void = std::ptr::without_provenance(1);
    let [float, sum, world] = [c"ompi_mpi_float", c"ompi_mpi_op_sum", c"ompi_mpi_comm_world"].map(symbol);
    // SAFETY: the function of that name, in the library that `join` loaded for everybody, has this type.
    let function: Allreduce = unsafe { std::mem::transmute(symbol(c"MPI_Allreduce")) };
    // SAFETY: the numbers are there and nobody else's until it returns, and the handles are the library's.
    let code = unsafe { function(IN_PLACE, numbers.as_mut_ptr().cast(), numbers.len() as c_int, float, sum, world) };
    assert_eq!(code, 0, "MPI_Allreduce");
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name is looked up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!at.is_null(), "{name:?} is Open MPI's; start this by mpirun.openmpi");
    at
}
