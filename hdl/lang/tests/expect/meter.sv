// Counts the beats of a packet and offers the count.
module meter (
  input  wire clock,
  input  wire reset,
  input  wire valid,
  input  wire last,
  output logic length_valid,
  input  wire length_ready,
  output logic [15:0] length,
  output logic busy
);
  localparam logic [1:0] PHASE_IDLE = 2'd0;
  localparam logic [1:0] PHASE_COUNT = 2'd1;
  localparam logic [1:0] PHASE_REPORT = 2'd2;
  logic [1:0] phase;
  logic [15:0] beats;
  wire [15:0] beats_next = (beats + 16'h1);
  assign length_valid = (phase == PHASE_REPORT);
  assign length = beats;
  assign busy = (phase != PHASE_IDLE);
  always_ff @(posedge clock) begin
    case (phase)
      PHASE_IDLE: begin
        beats <= 16'h1;
        if (valid & (~last)) begin
          phase <= PHASE_COUNT;
        end else if (valid) begin
          phase <= PHASE_REPORT;
        end
      end
      PHASE_COUNT: begin
        if (valid) begin
          beats <= beats_next;
          if (last) begin
            phase <= PHASE_REPORT;
          end
        end
      end
      default: begin  // PHASE_REPORT
        if (length_ready) begin
          phase <= PHASE_IDLE;
        end
      end
    endcase
    if (reset) begin
      phase <= PHASE_IDLE;
    end
  end
endmodule
