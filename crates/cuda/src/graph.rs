//! The commands of a routine, captured as one graph.
//!
//! What may fault comes first. What writes states is inside a condition, which the device decides by itself: so bad data
//! changes no state, and the host is asked once, at the end.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::prepared::{Kernel, Prepared};
use crate::replay::Seen;
use crate::stream::{Event, Stream};
use crate::{Command, Launch};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// Decides whether what follows is run: if nothing was raised. The driver itself has the function that it calls, so it is
/// given as text, which the driver compiles.
const DECIDE: &str = concat!(
    ".version 8.3\n.target sm_90\n.address_size 64\n",
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n",
    ".visible .entry decide(.param .u64 handle, .param .u64 fault) {\n",
    ".reg .pred %p1; .reg .b32 %r1; .reg .b64 %rd<5>;\n",
    "ld.param.u64 %rd1, [handle]; ld.param.u64 %rd2, [fault]; cvta.to.global.u64 %rd3, %rd2;\n",
    "ld.global.u64 %rd4, [%rd3]; setp.eq.s64 %p1, %rd4, -1; selp.u32 %r1, 1, 0, %p1;\n",
    "{ .param .b64 p0; .param .b32 p1; st.param.b64 [p0], %rd1; st.param.b32 [p1], %r1;\n",
    "call.uni cudaGraphSetConditional, (p0, p1); }\n",
    "ret;\n}\n\0"
);

/// The commands of a routine.
pub struct Steps {
    /// Step by step.
    pub commands: Vec<Vec<Command>>,
    /// The first step that writes a state.
    pub first_write: usize,
    /// How many steps, one after another, do not touch what others of them write, so that they may run side by side: group
    /// by group. A group ends before the first write.
    pub groups: Vec<usize>,
    /// For every step, whether its first command, if it waits by itself, may begin while the command before it runs.
    pub overlaps: Vec<bool>,
}

/// Streams that the steps of a group are shared out to.
const LANES: usize = 8;

/// A graph that can be launched.
pub(crate) struct Graph {
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
}

impl Graph {
    /// What can be launched.
    pub fn ready(&self) -> sys::CUgraphExec {
        self.ready
    }

    /// Captures steps whose commands are ready. Where the driver does not take kernels that begin early, they do not.
    pub fn capture(device: &Arc<Device>, prepared: &mut [Vec<Prepared>], steps: &Steps, seen: &Seen) -> Result<Graph> {
        let early = Graph::capture_with(device, prepared, steps, seen, true);
        early.or_else(|_| Graph::capture_with(device, prepared, steps, seen, false))
    }

    fn capture_with(
        device: &Arc<Device>,
        prepared: &mut [Vec<Prepared>],
        steps: &Steps,
        seen: &Seen,
        early: bool,
    ) -> Result<Graph> {
        // Others may use the device's stream meanwhile, and what they send is no part of this.
        let outer = Stream::new()?;
        let stream = outer.0;
        // A lane belongs to what is captured until that ends: what is inside of it takes others.
        let [lanes, inner_lanes] = [lanes()?, lanes()?];
        let mut graph = Graph { graph: std::ptr::null_mut(), ready: std::ptr::null_mut() };
        // SAFETY: the graph is written by the call.
        unsafe { sys::cuGraphCreate(&mut graph.graph, 0) }.result().map_err(Error::call("cuGraphCreate"))?;
        let (before, after) = prepared.split_at_mut(steps.first_write);
        let mut groups = steps.groups.iter().copied();
        let mut overlaps = steps.overlaps.iter().map(|overlaps| *overlaps && early);
        begin(stream, graph.graph)?;
        let captured = (|| {
            seen.reset(stream)?;
            send_all(before, &mut groups, &mut overlaps, stream, &lanes)?;
            if !after.is_empty() {
                let body = add_condition(device, stream, graph.graph, seen.fault())?;
                let inner = Stream::new()?;
                begin(inner.0, body)?;
                let sent = send_all(after, &mut groups, &mut overlaps, inner.0, &inner_lanes);
                sent.and(end(inner.0))?;
            }
            seen.fetch(stream)
        })();
        captured.and(end(stream))?;
        // SAFETY: the graph is whole.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut graph.ready, graph.graph, 0) }
            .result()
            .map_err(Error::call("cuGraphInstantiate"))?;
        Ok(graph)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both were made by `capture`, if at all, and are destroyed here alone.
        unsafe {
            if !self.ready.is_null() {
                let _ = result::graph::exec_destroy(self.ready);
            }
            if !self.graph.is_null() {
                let _ = result::graph::destroy(self.graph);
            }
        }
    }
}

/// Sends steps group by group; those of a group side by side.
fn send_all(
    mut steps: &mut [Vec<Prepared>],
    groups: &mut impl Iterator<Item = usize>,
    overlaps: &mut impl Iterator<Item = bool>,
    stream: sys::CUstream,
    lanes: &[Lane],
) -> Result<()> {
    // Whether what was sent last to the stream is a kernel of ours.
    let mut after_kernel = false;
    while !steps.is_empty() {
        let count = groups.next().unwrap_or(1).clamp(1, steps.len());
        let (group, rest) = steps.split_at_mut(count);
        let may_overlap = overlaps.by_ref().take(count).last().unwrap_or(false);
        match group {
            [one] if one.is_empty() => {}
            [one] => {
                send(one, stream, after_kernel && may_overlap)?;
                after_kernel = one.last().is_some_and(Prepared::is_kernel);
            }
            several => {
                send_side_by_side(several, stream, lanes)?;
                after_kernel = false;
            }
        }
        steps = rest;
    }
    Ok(())
}

/// Sends a step, whose first command may overlap with what is before it.
fn send(step: &mut [Prepared], stream: sys::CUstream, may_overlap: bool) -> Result<()> {
    let mut overlaps = may_overlap;
    for command in step {
        // SAFETY: the promise given to `Replay::new`.
        unsafe { command.send(stream, overlaps) }?;
        overlaps = false;
    }
    Ok(())
}

/// Each lane waits for the stream, and the stream for all of them.
fn send_side_by_side(steps: &mut [Vec<Prepared>], stream: sys::CUstream, lanes: &[Lane]) -> Result<()> {
    let lanes = &lanes[..lanes.len().min(steps.len())];
    lanes[0].begin.record(stream)?;
    for lane in lanes {
        lanes[0].begin.hold(lane.stream.0)?;
    }
    for (index, step) in steps.iter_mut().enumerate() {
        send(step, lanes[index % lanes.len()].stream.0, false)?;
    }
    for lane in lanes {
        lane.end.record(lane.stream.0)?;
        lane.end.hold(stream)?;
    }
    Ok(())
}

fn lanes() -> Result<Vec<Lane>> {
    (0..LANES).map(|_| Lane::new()).collect()
}

/// A stream beside the one that is captured, the moment when it is begun and that when it is through.
struct Lane {
    stream: Stream,
    begin: Event,
    end: Event,
}

impl Lane {
    fn new() -> Result<Lane> {
        Ok(Lane { stream: Stream::new()?, begin: Event::new()?, end: Event::new()? })
    }
}

/// From now on, what is sent to the stream goes into the graph.
fn begin(stream: sys::CUstream, graph: sys::CUgraph) -> Result<()> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: stream and graph are there; there are no dependencies.
    unsafe { sys::cuStreamBeginCaptureToGraph(stream, graph, std::ptr::null(), std::ptr::null(), 0, mode) }
        .result()
        .map_err(Error::call("cuStreamBeginCaptureToGraph"))
}

fn end(stream: sys::CUstream) -> Result<()> {
    // SAFETY: a capture was begun on the stream. The graph that it gives is the one that was given.
    unsafe { result::stream::end_capture(stream) }.map(|_| ()).map_err(Error::call("cuStreamEndCapture"))
}

/// Adds to what is being captured that what follows is run only if no fault was raised; gives the graph for that.
fn add_condition(device: &Arc<Device>, stream: sys::CUstream, graph: sys::CUgraph, fault: u64) -> Result<sys::CUgraph> {
    let mut handle: sys::CUgraphConditionalHandle = 0;
    // SAFETY: the graph and the context are there; the handle is written by the call.
    unsafe {
        sys::cuGraphConditionalHandleCreate(&mut handle, graph, device.context(), 0, sys::CU_GRAPH_COND_ASSIGN_DEFAULT)
    }
    .result()
    .map_err(Error::call("cuGraphConditionalHandleCreate"))?;
    let decide = device.decide(DECIDE)?;
    let launch = Launch {
        source: String::new(),
        entry: "decide",
        grid: [1; 3],
        block: 1,
        shared: 0,
        maps: vec![],
        arguments: vec![handle, fault],
        early: None,
    };
    // SAFETY: it reads the cell, which lives, and sets the condition of the graph that it becomes a part of.
    unsafe { Kernel::new(decide, &launch)?.send(stream, false) }?;
    let (mut status, mut nodes, mut count) =
        (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, std::ptr::null(), 0);
    let none = std::ptr::null_mut();
    // SAFETY: the stream is being captured; what is asked for is written by the call.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(stream, &mut status, none, none.cast(), &mut nodes, none.cast(), &mut count)
    }
    .result()
    .map_err(Error::call("cuStreamGetCaptureInfo"))?;
    let mut parameters = sys::CUgraphNodeParams {
        type_: sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        // SAFETY: all zeros is what fields that are not used must be.
        ..unsafe { std::mem::zeroed() }
    };
    parameters.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_: sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
        size: 1,
        phGraph_out: std::ptr::null_mut(),
        ctx: device.context(),
    };
    let mut node = std::ptr::null_mut();
    // SAFETY: the nodes are those of the graph that is being captured; the node is written by the call.
    unsafe { sys::cuGraphAddNode_v2(&mut node, graph, nodes, std::ptr::null(), count, &mut parameters) }
        .result()
        .map_err(Error::call("cuGraphAddNode"))?;
    let flags = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
    // SAFETY: the node is one of the graph that is being captured.
    unsafe { sys::cuStreamUpdateCaptureDependencies_v2(stream, &mut node, std::ptr::null(), 1, flags) }
        .result()
        .map_err(Error::call("cuStreamUpdateCaptureDependencies"))?;
    // SAFETY: the call above wrote where the graphs of the node are, of which there is one.
    Ok(unsafe { *parameters.__bindgen_anon_1.conditional.phGraph_out })
}
