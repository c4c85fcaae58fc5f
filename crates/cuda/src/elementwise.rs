//! Element-wise kernels, generated: a scalar program run on every element.

use crate::operand::WIDEST;
use crate::{Launch, Operand, Source, expression};
use gradus_scalar::{Argument, ScalarProgram};
use std::fmt::Write;

const THREADS: usize = 256;

/// The kernel that runs a program on every element. Operands lie in any way; so may the result, no two elements in one place.
pub fn elementwise(program: &ScalarProgram, inputs: &[Operand], output: &Operand) -> Launch {
    let width = width(inputs, output);
    let mut source = Source::new("elementwise", "").code(&expression("program", program, inputs.len()));
    for (index, input) in inputs.iter().enumerate() {
        source = source.operand(&format!("x{index}"), input);
    }
    source = source.operand("y", output).size("COUNT", output.elements());
    let blocks = output.elements().div_ceil(width * THREADS);
    source.code(&body(program, inputs, output, width)).launch(blocks, THREADS)
}

/// The kernel that copies an operand, converted to the type of the result.
pub fn copy(input: &Operand, output: &Operand) -> Launch {
    let program = ScalarProgram { instructions: vec![], result: Argument::Input(0) };
    elementwise(&program, std::slice::from_ref(input), output)
}

/// How many elements a thread computes: as many as the widest operands have in the most bytes that move at once, where
/// all that is not repeated lies side by side.
fn width(inputs: &[Operand], output: &Operand) -> usize {
    let largest = inputs.iter().chain([output]).map(|operand| operand.element.size()).max().unwrap_or(4);
    let most = 2 * WIDEST / largest;
    output.vector(most.min(8))
}

/// The function. Operands that can be read at once are; those that repeat are read once; others element by element.
fn body(program: &ScalarProgram, inputs: &[Operand], output: &Operand, width: usize) -> String {
    let mut text = String::from("extern \"C\" __global__ void elementwise(");
    for index in 0..inputs.len() {
        write!(text, "const x{index}_t *x{index}, ").expect("written to a string");
    }
    let line = |text: &mut String, line: &str| {
        text.push_str("    ");
        text.push_str(line);
        text.push('\n');
    };
    text.push_str("y_t *y) {\n");
    line(&mut text, "await_earlier();");
    line(&mut text, &format!("const index_t i = ((index_t)blockIdx.x * {THREADS} + threadIdx.x) * {width};"));
    line(&mut text, "if (i >= COUNT) return;");
    for (index, input) in inputs.iter().enumerate() {
        line(&mut text, &load(index, input, width));
    }
    line(&mut text, &format!("Vector<y_t, {width}> result;"));
    line(&mut text, "#pragma unroll");
    line(&mut text, &format!("for (int v = 0; v < {width}; v++)"));
    line(&mut text, &format!("    result.at[v] = {};", element(program, inputs, output)));
    line(&mut text, &format!("*(Vector<y_t, {width}> *)(y + y_at(i)) = result;"));
    text.push_str("}\n");
    text
}

/// Reads what a thread needs of an operand into `vINDEX`.
fn load(index: usize, input: &Operand, width: usize) -> String {
    let repeats = input.axes().last().is_none_or(|&(size, stride)| stride == 0 && size.is_multiple_of(width));
    let whole = format!("Vector<x{index}_t, {width}> v{index};");
    if input.vector(width) == width {
        format!(
            "const Vector<x{index}_t, {width}> v{index} = *(const Vector<x{index}_t, {width}> *)(x{index} + x{index}_at(i));"
        )
    } else if repeats {
        format!("{whole} for (int v = 0; v < {width}; v++) v{index}.at[v] = x{index}[x{index}_at(i)];")
    } else {
        format!("{whole} for (int v = 0; v < {width}; v++) v{index}.at[v] = x{index}[x{index}_at(i + v)];")
    }
}

/// One element of the result.
fn element(program: &ScalarProgram, inputs: &[Operand], output: &Operand) -> String {
    // What is only moved keeps its bits: integers are wider than a float's digits.
    if let (true, Argument::Input(index)) = (program.instructions.is_empty(), program.result)
        && inputs[index].element == output.element
    {
        return format!("v{index}.at[v]");
    }
    let arguments: Vec<String> = (0..inputs.len()).map(|index| format!("to_float(v{index}.at[v])")).collect();
    format!("from_float<y_t>(program({}))", arguments.join(", "))
}
