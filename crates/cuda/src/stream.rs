//! Streams, and moments on them.

use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use std::time::Duration;

/// A stream of the context that is current.
pub(crate) struct Stream(pub sys::CUstream);

impl Stream {
    pub fn new() -> Result<Stream> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Stream(stream.map_err(Error::call("cuStreamCreate"))?))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A moment on a stream.
pub(crate) struct Event(sys::CUevent);

impl Event {
    pub fn new() -> Result<Event> {
        Ok(Event(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(Error::call("cuEventCreate"))?))
    }

    /// One that a host waits for asleep.
    pub fn to_sleep_for() -> Result<Event> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        Ok(Event(event.map_err(Error::call("cuEventCreate"))?))
    }

    /// Waits until it has passed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is there.
        unsafe { result::event::synchronize(self.0) }.map_err(Error::call("cuEventSynchronize"))
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> Result<bool> {
        // SAFETY: the event is there.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(Error::call("cuEventQuery")),
        }
    }

    pub fn record(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: both are there.
        unsafe { result::event::record(self.0, stream) }.map_err(Error::call("cuEventRecord"))
    }

    /// Lets another stream wait for it.
    pub fn hold(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: both are there.
        unsafe { result::stream::wait_event(stream, self.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(Error::call("cuStreamWaitEvent"))
    }

    /// The time from here to a later one; both have passed.
    pub fn until(&self, later: &Event) -> Result<Duration> {
        // SAFETY: both were recorded, and passed.
        let milliseconds =
            unsafe { result::event::elapsed(self.0, later.0) }.map_err(Error::call("cuEventElapsedTime"))?;
        Ok(Duration::from_secs_f64(milliseconds as f64 * 1e-3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
