//! The step of a stage, replayed: one micro-batch forward and one back in turn (1F1B).

use super::staged::{FORWARD, GIVEN, GRADIENT, INPUT_GRADIENT, OUTPUT};
use super::{Batch, SQUARES, StepScalars, TrainingStep, is_not_finite};
use crate::pipeline::Pipeline;
use crate::{Error, Result};

impl TrainingStep {
    /// The other stages, to be given back by [`TrainingStep::give_pipeline`].
    pub(crate) fn take_pipeline(&mut self) -> Option<Box<Pipeline>> {
        self.pipeline.take()
    }

    pub(crate) fn give_pipeline(&mut self, pipeline: Box<Pipeline>) {
        self.pipeline = Some(pipeline);
    }

    /// What the first rank of those answers that compute the same examples: this one's answer, if it is the only one.
    pub(crate) fn agreed(&mut self, own: bool) -> Result<bool> {
        self.pipeline.as_mut().map_or(Ok(own), |pipeline| pipeline.of_first(own))
    }

    /// Takes all micro-batches through this stage and their gradients back.
    pub(super) fn replay_stage(
        &mut self,
        mut pipeline: Box<Pipeline>,
        batch: &Batch,
        inputs: &StepScalars,
    ) -> Result<()> {
        pipeline.spoiled = false;
        let replayed = self.one_forward_one_back(&mut pipeline, batch, inputs);
        // The others hear of it by the sums.
        let replayed = replayed.and_then(|()| if pipeline.spoiled { self.spoil_sums() } else { Ok(()) });
        self.pipeline = Some(pipeline);
        replayed
    }

    /// No stage waits for one that waits for it: whoever gives and gets something of the same stage does both at once.
    fn one_forward_one_back(&mut self, pipeline: &mut Pipeline, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        let passes = self.config.passes();
        let ahead = pipeline.stage().ahead(passes);
        for pass in 0..ahead {
            pipeline.receive_given(pass)?;
            self.forward(pipeline, pass, batch, inputs)?;
            pipeline.send_output()?;
        }
        if ahead < passes {
            pipeline.receive_given(ahead)?;
        }
        for pass in ahead..passes {
            self.forward(pipeline, pass, batch, inputs)?;
            pipeline.swap_with_next()?;
            self.back(pipeline, pass - ahead, batch, inputs)?;
            match pass + 1 < passes {
                true => pipeline.swap_with_previous(pass + 1)?,
                false => pipeline.send_gradient()?,
            }
        }
        for pass in passes - ahead..passes {
            pipeline.receive_gradient()?;
            self.back(pipeline, pass, batch, inputs)?;
            pipeline.send_gradient()?;
        }
        Ok(())
    }

    /// Takes a micro-batch through the blocks. The last stage does that with the gradient.
    fn forward(&mut self, pipeline: &mut Pipeline, pass: usize, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        if pipeline.stage().is_last() {
            return Ok(());
        }
        self.write_pass(pass, batch, inputs)?;
        self.write_given(pipeline, pass)?;
        match self.run_routine(FORWARD) {
            Err(error) if is_not_finite(&error) => {
                pipeline.spoiled = true;
                pipeline.output.fill(f32::NAN);
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => Ok(self.program.read_into(OUTPUT, &mut pipeline.output)?),
        }
    }

    /// Adds the gradient of a micro-batch to the sums, and the sums to those of lanes before, where it is the last of its lane.
    fn back(&mut self, pipeline: &mut Pipeline, pass: usize, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        self.write_pass(pass, batch, inputs)?;
        self.write_given(pipeline, pass)?;
        if !pipeline.stage().is_last() {
            self.program.write(GRADIENT, &pipeline.gradient)?;
        }
        let (lane, index) = (pass / self.config.micro_batches, pass % self.config.micro_batches);
        match self.run_routine(if index == 0 { "first" } else { "accumulate" }) {
            Err(error) if is_not_finite(&error) => {
                pipeline.spoiled = true;
                pipeline.input_gradient.fill(f32::NAN);
            }
            replayed => {
                replayed?;
                if !pipeline.stage().is_first() {
                    self.program.read_into(INPUT_GRADIENT, &mut pipeline.input_gradient)?;
                }
            }
        }
        let folds = self.folds.clone();
        match &folds[lane] {
            Some(fold) if index + 1 == self.config.micro_batches => self.run_routine(fold),
            _ => Ok(()),
        }
    }

    fn write_given(&mut self, pipeline: &Pipeline, pass: usize) -> Result<()> {
        match pipeline.stage().is_first() {
            true => Ok(()),
            false => Ok(self.program.write(GIVEN, pipeline.given(pass))?),
        }
    }

    /// Makes a sum such that the step is refused by all.
    fn spoil_sums(&mut self) -> Result<()> {
        let sum = &self.summed[0].sums[0];
        self.program.fill(&sum[..], |bytes| {
            bytes[..size_of::<f32>()].copy_from_slice(&f32::NAN.to_ne_bytes());
            Ok::<(), Error>(())
        })
    }

    /// The end of a step of a stage: its sums over all pipelines, what the update needs of other stages, and the update.
    pub(super) fn update_stage(&mut self, mut pipeline: Box<Pipeline>, last: &str) -> Result<()> {
        let shared = self.share_with_stages(&mut pipeline);
        self.pipeline = Some(pipeline);
        shared?;
        self.run_routine(last)
    }

    fn share_with_stages(&mut self, pipeline: &mut Pipeline) -> Result<()> {
        if let TrainingStep { exchange: Some(exchange), program, .. } = self {
            exchange.scattered(program)?;
            exchange.gather()?;
            exchange.all_gathered()?;
        }
        pipeline.share_sums(&mut self.program)?;
        self.run_routine(SQUARES)?;
        pipeline.share_squares(&mut self.program)
    }

    /// The mean loss over the micro-batch that is written.
    pub(super) fn evaluate_stage(&mut self, pipeline: &mut Pipeline) -> Result<f32> {
        pipeline.receive_given(0)?;
        self.write_given(pipeline, 0)?;
        self.program.run("evaluate")?;
        match pipeline.stage().is_last() {
            true => pipeline.of_last(self.program.scalar("loss")?),
            false => {
                self.program.read_into(OUTPUT, &mut pipeline.output)?;
                pipeline.send_output()?;
                pipeline.of_last(0.0)
            }
        }
    }
}
