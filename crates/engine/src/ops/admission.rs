//! What an operation says of itself is held against its operands and results where it enters a trace: one that
//! contradicts itself is an error at the user's line, and whoever plans or differentiates may rely on the rest.

use super::*;

/// What is wrong with an operation that takes operands and gives results of these types.
type Verdict = Result<(), String>;

/// Checks all that an operation says of itself.
pub(crate) fn check(op: &dyn Operation, inputs: &[TensorType], outputs: &[TensorType]) -> Verdict {
    check_results(op, inputs.len(), outputs.len())?;
    let effect = op.effect(inputs);
    if let Some(input) = effect.check().map(Check::input).filter(|&input| input >= inputs.len()) {
        return Err(format!("`effect` looks at operand {input}, and there are {}", inputs.len()));
    }
    check_form(op, inputs, outputs, &effect)?;
    check_lowering(op, inputs, outputs, &effect)
}

/// Results that are spoken of must be there.
fn check_results(op: &dyn Operation, inputs: usize, outputs: usize) -> Verdict {
    if outputs == 0 || op.output_count() != outputs {
        let stated = op.output_count();
        return Err(format!(
            "`outputs` gives {outputs} results and `output_count` says {stated}; let both be the same, \
                            and at least 1"
        ));
    }
    if let Some(pair) = op.in_place().into_iter().find(|&(output, input)| output >= outputs || input >= inputs) {
        return Err(format!("`in_place` gives {pair:?}, and there are {outputs} results and {inputs} operands"));
    }
    let sums = op.accumulates();
    if !sums.is_sorted_by(|a, b| a < b) || sums.last().is_some_and(|&sum| sum >= outputs) {
        return Err(format!("`accumulates` gives {sums:?}, which must be some of {outputs} results in rising order"));
    }
    Ok(())
}

/// What may stand for the operation must take the same operands, give the same results and do nothing else.
fn check_form(op: &dyn Operation, inputs: &[TensorType], outputs: &[TensorType], effect: &Effect) -> Verdict {
    let form: &dyn Operation = match op.form() {
        Form::Elementwise(program) => program,
        Form::Product(product) => product,
        Form::FusedProduct(product) => product,
        Form::Accumulation(accumulation) => accumulation,
        Form::Loss(loss) => loss,
        Form::LossGradient(gradient) => gradient,
        Form::Update { gradient } if gradient >= inputs.len() => {
            return Err(format!("`form` names operand {gradient}, and there are {}", inputs.len()));
        }
        // What an operation on rows becomes is looked at where that is made.
        Form::Update { .. } | Form::Rows(_) | Form::Opaque => return Ok(()),
    };
    if form.outputs(inputs).as_deref() != Ok(outputs) || form.effect(inputs) != *effect {
        let name = form.name();
        return Err(format!(
            "`form` says that it is {name}, which has other operands, results or effects; \
                            let it be opaque"
        ));
    }
    Ok(())
}

/// What is no step of a plan must be there without one, and kernels must be the operation's own.
fn check_lowering(op: &dyn Operation, inputs: &[TensorType], outputs: &[TensorType], effect: &Effect) -> Verdict {
    let is_there = match op.lowering() {
        Lowering::View(rule) => outputs.iter().enumerate().all(|(index, output)| is_view(rule, index, inputs, output)),
        Lowering::Identity => inputs.get(..outputs.len()) == Some(outputs),
        Lowering::SideBySide(axis, _) => {
            outputs.len() == 1 && inputs.iter().chain(outputs).all(|ty| axis < ty.shape.rank())
        }
        Lowering::Kernels(_) | Lowering::Slices(_) => true,
    };
    if !is_there {
        return Err("`lowering` gives operands for results, and they are of other types or reach past them".to_string());
    }
    if let Lowering::View(_) | Lowering::Identity | Lowering::SideBySide(..) = op.lowering()
        && *effect != Effect::Pure
    {
        return Err("`lowering` is no computation where an `effect` could be; let it have kernels".to_string());
    }
    if let Lowering::Kernels(_) | Lowering::SideBySide(..) = op.lowering()
        && own_kernels(op).is_none()
    {
        return Err("`lowering` gives kernels that are not its own; let it give its own".to_string());
    }
    Ok(())
}

/// Whether a rule finds a result inside of the first operand, if that lies densely.
fn is_view(rule: &dyn ViewRule, index: usize, inputs: &[TensorType], output: &TensorType) -> bool {
    let Some(TensorType { dtype, shape }) = inputs.first() else { return false };
    let is_inside = |layout: Layout| {
        layout.shape == output.shape
            && layout.strides.len() == output.shape.rank()
            && layout.end() <= shape.elements()
            && *dtype == output.dtype
    };
    rule.view(index, &Layout::dense(shape)).is_some_and(is_inside)
}
