// Comparisons of unsigned numbers as "less", for yosys' techmap. Its carry chain answers that; of the others it makes a carry and,
// behind it, an equality of all bits, which is up to three LUTs more.
//
//   a >= b:  not a < b        a > b:  b < a, with a constant b not a < b + 1        a <= b:  not a > b

(* techmap_celltype = "$gt $ge $le" *)
module less (A, B, Y);
  parameter A_SIGNED = 0, B_SIGNED = 0, A_WIDTH = 0, B_WIDTH = 0, Y_WIDTH = 0;
  parameter _TECHMAP_CELLTYPE_ = "";
  parameter [B_WIDTH-1:0] _TECHMAP_CONSTMSK_B_ = 0;
  input [A_WIDTH-1:0] A;
  input [B_WIDTH-1:0] B;
  output [Y_WIDTH-1:0] Y;

  wire _TECHMAP_FAIL_ = A_SIGNED || B_SIGNED;
  wire [B_WIDTH:0] behind = {1'b0, B} + 1'b1;
  wire greater = &_TECHMAP_CONSTMSK_B_ ? !(A < behind) : B < A;
  wire answer = _TECHMAP_CELLTYPE_ == "$ge" ? !(A < B) : _TECHMAP_CELLTYPE_ == "$gt" ? greater : !greater;
  assign Y = answer;
endmodule
