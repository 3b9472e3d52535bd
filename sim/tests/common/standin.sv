// A stand-in for the card's RTL with the same pins: a few registers, one memory write, one memory read, one frame.
// Registers of BAR0, one DW each: 10/14 DMA address, 18 write this DW there, 1c read 64 bytes there, 20 sum of the DWs
// read, 24 DWs read, 28 send the frame, 2c frames received, 30 now, 34 a time at which register 38 is written to memory.
module standin (
    input clock, input reset, input tx_clock, input tx_reset, input rx_clock, input rx_reset, input flr,
    output reg [63:0] xgmii_txd, output reg [7:0] xgmii_txc, input [63:0] xgmii_rxd, input [7:0] xgmii_rxc,
    output rq_valid, input rq_ready, output [127:0] rq_header, output [63:0] rq_data, output rq_first, output rq_last,
    input rc_valid, output rc_ready, input [127:0] rc_header, input [63:0] rc_data, input rc_first, input rc_last,
    input cq_valid, output cq_ready, input [127:0] cq_header, input [63:0] cq_data, input cq_first, input cq_last,
    input [2:0] cq_bar,
    output reg cc_valid, input cc_ready, output reg [127:0] cc_header, output reg [63:0] cc_data, output cc_first,
    output cc_last, input posted_ok, input nonposted_ok,
    input [15:0] pcie_requester_id, input [2:0] pcie_max_payload, input [2:0] pcie_max_read_request, input pcie_rcb,
    input pcie_extended_tag, input pcie_relaxed_ordering, input pcie_bus_master, input [4:0] pcie_completion_timeout,
    input pcie_msix_enable, input pcie_msix_mask, input [47:0] factory_mac, input [15:0] factory_mtu, input link_up, output quiet, output [63:0] next_due, input now_load, input [63:0] now_value
);
    reg [63:0] now, dma;
    reg [31:0] word, sum, count, due, due_word;
    reg want_write, want_read, outstanding, want_frame;
    reg [6:0] settle;
    wire four = cq_header[125];
    wire [31:0] address = four ? cq_header[31:0] : cq_header[63:32];
    wire [7:0] register_ = {address[7:2], 2'b00};
    wire [31:0] first_data = cq_data[31:0];
    wire write = cq_header[126];
    assign cq_ready = !cc_valid;
    assign rc_ready = 1;
    assign cc_first = 1;
    assign cc_last = 1;
    reg [31:0] value, more;
    always @* begin
        case (register_)
            8'h10: value = dma[31:0];
            8'h20: value = sum;
            8'h24: value = count;
            8'h2c: value = frames;
            8'h30: value = now[31:0];
            8'h3c: value = {26'b0, pcie_max_payload, pcie_max_read_request};
            default: value = 0;
        endcase
        more = (register_ == 8'h10) ? dma[63:32] : 0;
    end
    assign rq_valid = pcie_bus_master && (want_write ? posted_ok : want_read && nonposted_ok);
    assign rq_first = 1;
    assign rq_last = 1;
    // MWr or MRd, three header DWs below 4 GB, else four
    wire far = dma[63:32] != 0;
    wire [63:0] place = far ? dma : {dma[31:0], 32'd0};
    assign rq_header = want_write
        ? {2'b01, far, 5'd0, 14'd0, 10'd1, pcie_requester_id, 8'd0, 4'h0, 4'hf, place}
        : {2'b00, far, 5'd0, 14'd0, 10'd16, pcie_requester_id, 8'd3, 4'hf, 4'hf, place};
    assign rq_data = {32'd0, word};
    wire fire = due != 0 && now >= {32'd0, due};
    always @(posedge clock) begin
        now <= now_load ? now_value : now + 1;
        if (settle != 0) settle <= settle - 1;
        if (cc_valid && cc_ready) cc_valid <= 0;
        if (rq_valid && rq_ready) begin
            if (want_write) want_write <= 0;
            else begin want_read <= 0; outstanding <= 1; end
        end
        if (rc_valid) begin
            sum <= sum + rc_data[31:0] + ((rc_last && rc_header[96]) ? 0 : rc_data[63:32]);
            count <= count + ((rc_last && rc_header[96]) ? 1 : 2);
            if (rc_last && {20'd0, rc_header[75:64]} <= {20'd0, rc_header[105:96], 2'b00}) outstanding <= 0;
        end
        if (cq_valid && cq_ready && cq_first && cq_bar == 0) begin
            if (write) case (register_)
                8'h10: dma[31:0] <= first_data;
                8'h14: dma[63:32] <= first_data;
                8'h18: begin word <= first_data; want_write <= 1; end
                8'h1c: want_read <= 1;
                8'h28: want_frame <= !want_frame;
                8'h34: due <= first_data;
                8'h38: due_word <= first_data;
                default: ;
            endcase
            else begin
                cc_valid <= 1;
                cc_header <= {3'b010, 5'b01010, 14'd0, cq_header[105:96], pcie_requester_id, 3'd0, 1'b0,
                    cq_header[105:96], 2'b00, cq_header[95:72], 1'b0, register_[6:2], 2'b00, 32'd0};
                cc_data <= {more, value};
            end
        end
        if (fire) begin due <= 0; word <= due_word; want_write <= 1; end
        if (reset || flr) begin
            now <= 0; dma <= 0; sum <= 0; count <= 0; due <= 0; want_write <= 0; want_read <= 0; outstanding <= 0;
            cc_valid <= 0; settle <= 100; word <= 0; due_word <= 0;
            if (reset) want_frame <= 0;
        end
    end
    assign next_due = due == 0 ? 64'hffffffffffffffff : {32'd0, due};
    assign quiet = settle == 0 && !cc_valid && !want_write && !want_read && !outstanding && frame_idle && !fire;
    // line
    reg sent_frame;
    reg [3:0] beat;
    wire frame_idle = sent_frame == want_frame && beat == 0;
    always @(posedge tx_clock) begin
        xgmii_txd <= 64'h0707070707070707;
        xgmii_txc <= 8'hff;
        case (beat)
            0: if (sent_frame != want_frame) begin
                xgmii_txd <= 64'hd5555555555555fb; xgmii_txc <= 8'h01; beat <= 1; sent_frame <= want_frame;
            end
            1, 2, 3, 4, 5, 6, 7, 8: begin xgmii_txd <= FRAME[({28'd0, beat} - 1) * 64 +: 64]; xgmii_txc <= 0; beat <= beat + 1; end
            9: begin xgmii_txd <= 64'h07070707070707fd; beat <= 10; end
            10, 11: beat <= beat + 1;
            default: beat <= 0;
        endcase
        if (tx_reset) begin beat <= 0; sent_frame <= 0; end
    end
    localparam [511:0] FRAME = 512'h@FRAME@;
    reg [31:0] frames;
    always @(posedge rx_clock) begin
        if (xgmii_rxc[0] && xgmii_rxd[7:0] == 8'hfd) frames <= frames + 1;
        if (rx_reset) frames <= 0;
    end
endmodule
