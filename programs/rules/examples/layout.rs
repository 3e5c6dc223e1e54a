//! Prints every field of the state's records: record, field, offset and size in bytes, one a line.

use psyche_rules::state::RECORDS;

fn main() {
    for (record, size, fields) in RECORDS {
        println!("{record} - 0 {size}");
        for (field, offset, size, _) in *fields {
            println!("{record} {field} {offset} {size}");
        }
    }
}
